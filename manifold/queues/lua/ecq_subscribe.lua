-- ecq_subscribe.lua: record that the client subscribed to its compacted queue or unsubscribed, and claim if requested.
-- ARGV[6] '1' to claim
-- ARGV[7] 'yes', 'no', or 'qos0', with which nothing is sent, because a QoS 0 delivery is never acknowledged
-- ARGV[8] when the broker granted the subscription, Unix ms
-- returns claim's reply; {'none'} if no claim was requested
local MAX_SKEW_MS = 60000 -- maximum clock difference between replicas
local known = redis.call('HMGET', PRESENCE, SUBSCRIBED, 'since')
local at = tonumber(ARGV[8])
-- the event is of an earlier connection, whose session a clean start may have ended
local is_late = at < (tonumber(known[2] or '') or 0)
if is_late and not known[1] then return {'none'} end
if ARGV[7] ~= 'yes' then
  redis.call('HSET', PRESENCE, SUBSCRIBED, ARGV[7])
elseif (tonumber(known[1] or '') or 0) <= at then
  redis.call('HSET', PRESENCE, SUBSCRIBED, ARGV[8])
end
-- As in update_presence.lua: any client id may connect, so the presence of a client for which nothing waits expires.
if redis.call('HGET', PRESENCE, 'connected') ~= 'yes' and redis.call('PTTL', PRESENCE) == -1
  and redis.call('EXISTS', PENDING, INFLIGHT, KEYS[9], KEYS[10], KEYS[11]) == 0 then
  redis.call('HSET', PRESENCE, 'passing', '1')
  redis.call('PEXPIRE', PRESENCE, tonumber(ARGV[2]) + MAX_SKEW_MS)
end
-- A message sent with a QoS 0 subscription is never acknowledged either.
local held = redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'published_at', 'unheard')
local is_lost = held[1] and ARGV[7] == 'qos0'
if held[1] and ARGV[7] == 'yes' then
  is_lost = held[4] and tonumber(held[3]) < at -- update_presence.lua sets `unheard`
  if not is_lost then
    if not is_late then redis.call('HDEL', INFLIGHT, 'unheard') end -- the vehicle was subscribed when the message was published
    -- release.lua: if the broker had no subscriber for the message, it has one now
    redis.call('HSET', INFLIGHT, 'resubscribed', '1')
  end
end
if is_lost then put_back(held[1], tonumber(held[2]) - 1, true) end
if ARGV[6] == '1' then return claim() end
return {'none'}
