-- ecq_subscribe.lua: the client subscribed to its compacted queue, or gave that up; and claim if asked to.
-- ARGV[6] '1' to claim   ARGV[7] 'yes', 'no', or 'qos0', which starts nothing: what is sent so is not acknowledged
-- ARGV[8] when the broker granted it
-- returns claim's answer; {'none'} where none was asked for
local CLOCKS_MS = 60000 -- by which the clocks of replicas may differ
local known = redis.call('HMGET', PRESENCE, SUBSCRIBED, 'since')
local at = tonumber(ARGV[8])
local is_late = at < (tonumber(known[2] or '') or 0) -- of a connection before: perhaps of a session that a clean start has ended
if is_late and not known[1] then return {'none'} end
if ARGV[7] ~= 'yes' then
  redis.call('HSET', PRESENCE, SUBSCRIBED, ARGV[7])
elseif (tonumber(known[1] or '') or 0) <= at then
  redis.call('HSET', PRESENCE, SUBSCRIBED, ARGV[8])
end
-- As in update_presence.lua: anybody may come under any name, and what is known of one for whom nothing waits goes by itself.
if redis.call('HGET', PRESENCE, 'connected') ~= 'yes' and redis.call('PTTL', PRESENCE) == -1
  and redis.call('EXISTS', PENDING, INFLIGHT, KEYS[9], KEYS[10], KEYS[11]) == 0 then
  redis.call('HSET', PRESENCE, 'passing', '1')
  redis.call('PEXPIRE', PRESENCE, tonumber(ARGV[2]) + CLOCKS_MS)
end
-- What went out beside such a subscription is not acknowledged either.
local held = redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'published_at', 'unheard')
local is_lost = held[1] and ARGV[7] == 'qos0'
if held[1] and ARGV[7] == 'yes' then
  is_lost = held[4] and tonumber(held[3]) < at -- update_presence.lua
  if not is_lost then
    if not is_late then redis.call('HDEL', INFLIGHT, 'unheard') end -- somebody listened when it was published
    redis.call('HSET', INFLIGHT, 'resubscribed', '1') -- if the broker had nobody for it, it has now: release.lua
  end
end
if is_lost then put_back(held[1], tonumber(held[2]) - 1, true) end
if ARGV[6] == '1' then return claim() end
return {'none'}
