-- ecq_subscribe.lua: the client subscribed to its compacted queue, or gave that up; and claim if asked to.
-- ARGV[6] '1' to claim   ARGV[7] 'yes', 'no', or 'qos0', which starts nothing: what is sent so is not acknowledged
-- returns claim's answer; {'none'} where none was asked for
local CLOCKS_MS = 60000 -- by which the clocks of replicas may differ
redis.call('HSET', PRESENCE, SUBSCRIBED, ARGV[7] == 'yes' and ARGV[1] or ARGV[7])
-- As in update_presence.lua: anybody may come under any name, and what is known of one for whom nothing waits goes by itself.
if redis.call('HGET', PRESENCE, 'connected') ~= 'yes' and redis.call('PTTL', PRESENCE) == -1
  and redis.call('EXISTS', PENDING, INFLIGHT, KEYS[9], KEYS[10], KEYS[11]) == 0 then
  redis.call('HSET', PRESENCE, 'passing', '1')
  redis.call('PEXPIRE', PRESENCE, tonumber(ARGV[2]) + CLOCKS_MS)
end
-- What went out beside such a subscription is not acknowledged either.
local held = redis.call('HMGET', INFLIGHT, 'seq', 'attempts')
if ARGV[7] == 'qos0' and held[1] then put_back(held[1], tonumber(held[2]) - 1, true) end
if ARGV[6] == '1' then return claim() end
return {'none'}
