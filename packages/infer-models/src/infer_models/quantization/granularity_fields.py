"""Reads the fields of a `quantization_config` that say which numbers share a scale."""

from infer_models.config.json_fields import JsonFields


def read_group_size(fields: JsonFields, name: str) -> int | None:
    """Read how many inputs share a scale; -1: all of them, returned as None.

    Raises:
        CheckpointError: it is another number below 1.
    """
    group_size = fields.whole_number(name, 128)
    if group_size != -1 and group_size < 1:
        raise fields.invalid(name, "a whole number of at least 1, or -1 for all inputs")
    return None if group_size == -1 else group_size


def read_block(fields: JsonFields, name: str) -> tuple[int, int]:
    """Read the rows and columns of a block.

    Raises:
        CheckpointError: they are not two whole numbers of at least 1.
    """
    block = fields.value(name)
    if isinstance(block, str):  # older files: `128x128`
        sizes = [int(each) if each.isdecimal() else 0 for each in block.split("x")]
    else:
        sizes = fields.indices(name)
    if len(sizes) != 2 or min(sizes) < 1:
        raise fields.invalid(name, "two whole numbers of at least 1")
    return sizes[0], sizes[1]
