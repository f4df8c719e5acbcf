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
local now, seq, reason, claimed_at = tonumber(ARGV[1]), ARGV[6], ARGV[7], ARGV[8]
local held_seq, held_attempts, deadline, published_at, resubscribed =
  unpack(redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'deadline', 'published_at', 'resubscribed'))
if held_seq ~= seq or (claimed_at ~= '' and published_at ~= claimed_at) then return {'stale'} end

local attempts = tonumber(held_attempts)
if reason == 'deadline' then
  if tonumber(deadline) > now then return {'early', deadline} end
  -- While the vehicle is offline and its session has not ended, the broker keeps the message and will redeliver it. Another
  -- publish would duplicate the message.
  local connected, session_until, heard = unpack(redis.call('HMGET', PRESENCE, 'connected', 'session_until', 'heard'))
  if connected == 'no' and (tonumber(session_until) or 0) > now then
    redis.call('HSET', INFLIGHT, 'deadline', session_until)
    return {'early', session_until}
  end
  -- The vehicle is connected, but silent, and does not acknowledge: the event of its disconnect may be lost. So from now on, only
  -- a sign of life shows that the vehicle is present.
  local is_silent = (tonumber(heard) or 0) + tonumber(ARGV[2]) < now
  if connected == 'yes' and is_silent then redis.call('HSET', PRESENCE, 'connected', 'heard') end
elseif reason == 'unsubscribed' then
  attempts = attempts - 1
  local subscribed_at = tonumber(redis.call('HGET', PRESENCE, SUBSCRIBED) or '')
  -- Mark the vehicle as not subscribed, unless it has subscribed since the claim.
  if not subscribed_at or subscribed_at < tonumber(published_at) then redis.call('HSET', PRESENCE, SUBSCRIBED, 'no') end
elseif reason == 'unsent' or reason == 'cut' then
  attempts = attempts - 1
end
local may_be_sent = reason ~= 'unsent' and reason ~= 'unsubscribed'
put_back(seq, attempts, may_be_sent)
return {'released', tostring(attempts), resubscribed or ''}
