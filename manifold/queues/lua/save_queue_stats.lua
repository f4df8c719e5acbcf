-- save_queue_stats.lua: keep a stats, unless one that began later lies there: of two that walk side by side the slower must not win.
-- KEYS[1] the stats   ARGV[1] when this one began, ms   ARGV[2…] its fields and values
-- returns 1, or 0 where the one that lies there is newer. One of a time to come, by Redis' clock, is of a clock that is wrong: it yields.
local kept, time = tonumber(redis.call('HGET', KEYS[1], 'at_ms') or '0'), redis.call('TIME')
if kept > tonumber(ARGV[1]) and kept <= time[1] * 1000 + time[2] / 1000 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
