"""The engine: requests, KV allocators, the scheduler, the step loop of a replica, the router."""
