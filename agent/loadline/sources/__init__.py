"""Programs that bring the figures of other systems' engines and routers to the agent."""
