-- save_queue_stats.lua: save queue statistics, unless those of a scan that began later are saved. So the slower of two concurrent
-- scans does not overwrite the newer statistics.
-- KEYS[1] the statistics   ARGV[1] when this scan began, Unix ms   ARGV[2…] fields and values
-- returns 1, or 0 if newer statistics are saved. Statistics from the future, by the clock of Redis, come from a wrong clock and
-- are replaced.
local saved_at, time = tonumber(redis.call('HGET', KEYS[1], 'at_ms') or '0'), redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
if saved_at > tonumber(ARGV[1]) and saved_at <= now then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
