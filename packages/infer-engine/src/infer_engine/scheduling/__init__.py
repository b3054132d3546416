"""Who computes how many tokens in which step. Knows tokens and blocks; knows no tensors and no text."""

from infer_engine.scheduling.continuous import ContinuousScheduler
from infer_engine.scheduling.kv_cache_manager import KVCacheManager
from infer_engine.scheduling.policies import POLICIES, Policy
from infer_engine.scheduling.running_batch import NoRoomError
from infer_engine.scheduling.schedule import RowEdit, Schedule, SchedulerLimits
from infer_engine.scheduling.static import StaticScheduler

__all__ = [
    "POLICIES",
    "ContinuousScheduler",
    "KVCacheManager",
    "NoRoomError",
    "Policy",
    "RowEdit",
    "Schedule",
    "SchedulerLimits",
    "StaticScheduler",
]
