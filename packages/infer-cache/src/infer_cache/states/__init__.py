"""States of fixed size beside keys and values: who has which slot, which are kept, and the tensors that hold them."""
