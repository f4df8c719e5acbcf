-- save_queue_stats.lua: save queue statistics, unless those of a later scan are there: of two concurrent scans, the slower must
-- not win.
-- KEYS[1] the statistics   ARGV[1] when this scan began, Unix ms   ARGV[2…] fields and values
-- returns 1, or 0 if newer statistics are there. Statistics from the future, by the clock of Redis, come from a wrong clock and
-- are replaced.
local kept, time = tonumber(redis.call('HGET', KEYS[1], 'at_ms') or '0'), redis.call('TIME')
if kept > tonumber(ARGV[1]) and kept <= time[1] * 1000 + time[2] / 1000 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
