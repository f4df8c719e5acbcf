-- ecq_subscribe.lua: record that the client subscribed to its compacted queue or unsubscribed, and claim if requested.
-- ARGV[6] '1' to claim
-- ARGV[7] 'yes', 'no', or 'qos0', with which nothing is sent, because a QoS 0 delivery is never acknowledged
-- ARGV[8] when the broker granted the subscription, Unix ms
-- returns claim's reply; {'none'} if no claim was requested
local MAX_SKEW_MS = 60000 -- maximum clock difference between replicas
local subscription, at = ARGV[7], tonumber(ARGV[8])
local known, since = unpack(redis.call('HMGET', PRESENCE, SUBSCRIBED, 'since'))
-- The event is of an earlier connection. If a clean start has ended the session of that connection, it has deleted the field of
-- the subscription, too, and the event says nothing about the new session.
local is_late = at < (tonumber(since or '') or 0)
if is_late and not known then return {'none'} end
if subscription ~= 'yes' then
  redis.call('HSET', PRESENCE, SUBSCRIBED, subscription)
elseif (tonumber(known or '') or 0) <= at then
  redis.call('HSET', PRESENCE, SUBSCRIBED, ARGV[8])
end

-- As in update_presence.lua: any client id may connect, so the presence of a client for which nothing waits expires.
if redis.call('HGET', PRESENCE, 'connected') ~= 'yes' and redis.call('PTTL', PRESENCE) == -1
  and redis.call('EXISTS', PENDING, INFLIGHT, KEYS[9], KEYS[10], KEYS[11]) == 0 then
  redis.call('HSET', PRESENCE, 'passing', '1')
  redis.call('PEXPIRE', PRESENCE, tonumber(ARGV[2]) + MAX_SKEW_MS)
end

local held_seq, attempts, published_at, unheard =
  unpack(redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'published_at', 'unheard'))
local is_lost = held_seq and subscription == 'qos0' -- a message sent with a QoS 0 subscription is never acknowledged either
if held_seq and subscription == 'yes' then
  is_lost = unheard and tonumber(published_at) < at -- update_presence.lua sets `unheard`
  if not is_lost then
    if not is_late then redis.call('HDEL', INFLIGHT, 'unheard') end -- the vehicle was subscribed when the message was published
    -- release.lua: if the broker had no subscriber for the message, it has one now
    redis.call('HSET', INFLIGHT, 'resubscribed', '1')
  end
end
if is_lost then put_back(held_seq, tonumber(attempts) - 1, true) end
if ARGV[6] == '1' then return claim() end
return {'none'}
