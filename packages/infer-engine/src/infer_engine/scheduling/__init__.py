"""Decides which requests each step computes, and how many tokens. Knows tokens and blocks; knows no tensors."""

from infer_engine.scheduling.base import BaseScheduler
from infer_engine.scheduling.continuous import ContinuousScheduler
from infer_engine.scheduling.kv_cache_manager import KVCacheManager
from infer_engine.scheduling.policies import POLICIES, Policy
from infer_engine.scheduling.prefill_share import PrefillShare
from infer_engine.scheduling.running_batch import KVCacheTooSmallError
from infer_engine.scheduling.schedule import RowEdit, Schedule, SchedulerLimits
from infer_engine.scheduling.static import StaticScheduler

__all__ = [
    "POLICIES",
    "BaseScheduler",
    "ContinuousScheduler",
    "KVCacheManager",
    "KVCacheTooSmallError",
    "Policy",
    "PrefillShare",
    "RowEdit",
    "Schedule",
    "SchedulerLimits",
    "StaticScheduler",
]
