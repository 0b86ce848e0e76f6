"""What a request log tells a planner: its rate, lengths, sessions, reuse, and an imitation."""
