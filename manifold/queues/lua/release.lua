-- release.lua: put the entry in flight back to pending, in seq order. The caller gives its seq, so that a late call never
-- releases another entry.
-- ARGV[6] seq   ARGV[7] reason   ARGV[8] time of the claim to release, or '' for any
-- The attempt counts with the reasons 'deadline' (release only if it has passed) and 'lost' (the vehicle's session has ended). It
-- does not count with 'unsubscribed' (the broker had no subscriber), 'unsent' (the entry was not handed to the broker) and 'cut'
-- (it is unknown whether the broker received the entry).
-- returns one of:
--   {'released', attempts, '1' if the vehicle has subscribed or sent a sign of life since the claim, or ''}
--   {'early', deadline_ms}: the deadline has not passed
--   {'stale'}: nothing, another entry, or another claim of this entry is in flight
local now, seq, why = tonumber(ARGV[1]), ARGV[6], ARGV[7]
local held = redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'deadline', 'published_at', 'resubscribed')
if held[1] ~= seq or (ARGV[8] ~= '' and held[4] ~= ARGV[8]) then return {'stale'} end
local attempts = tonumber(held[2])
if why == 'deadline' then
  if tonumber(held[3]) > now then return {'early', held[3]} end
  -- While the vehicle is offline and its session has not ended, the broker keeps the message and will redeliver it. Another
  -- publish would duplicate the message.
  local p = redis.call('HMGET', PRESENCE, 'connected', 'session_until', 'heard')
  if p[1] == 'no' and (tonumber(p[2]) or 0) > now then
    redis.call('HSET', INFLIGHT, 'deadline', p[2])
    return {'early', p[2]}
  end
  -- The vehicle is connected, but silent, and does not acknowledge: the event of its disconnect may be lost. So from now on, only
  -- a sign of life shows that the vehicle is present.
  if p[1] == 'yes' and (tonumber(p[3]) or 0) + tonumber(ARGV[2]) < now then redis.call('HSET', PRESENCE, 'connected', 'heard') end
elseif why == 'unsubscribed' then
  attempts = attempts - 1
  local since = tonumber(redis.call('HGET', PRESENCE, SUBSCRIBED) or '')
  -- Mark the vehicle as not subscribed, unless it has subscribed since the claim.
  if not since or since < tonumber(held[4]) then redis.call('HSET', PRESENCE, SUBSCRIBED, 'no') end
elseif why == 'unsent' or why == 'cut' then
  attempts = attempts - 1
end
put_back(seq, attempts, why ~= 'unsent' and why ~= 'unsubscribed') -- with the other reasons, the publish may be under way
return {'released', tostring(attempts), held[5] or ''}
