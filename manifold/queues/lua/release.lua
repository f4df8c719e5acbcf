-- release.lua: put the entry in flight back to pending, in its place. Takes its seq, so that a late call never releases a newer
-- entry.
-- ARGV[6] seq   ARGV[7] reason   ARGV[8] time of the claim to release, or '' for any
-- reasons: 'deadline' (only if it has passed), 'lost' (the session is gone), or, and then no attempt is counted, 'unsubscribed'
-- (the broker had no subscriber), 'unsent' (the broker never got it) or 'cut' (unknown whether it did)
-- returns {'released', attempts, '1' if the vehicle has subscribed or been heard from since the claim, or ''}
--   | {'early', deadline_ms} (not yet) | {'stale'} (another entry, another claim of it, or nothing is in flight)
local now, seq, why = tonumber(ARGV[1]), ARGV[6], ARGV[7]
local held = redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'deadline', 'published_at', 'resubscribed')
if held[1] ~= seq or (ARGV[8] ~= '' and held[4] ~= ARGV[8]) then return {'stale'} end
local attempts = tonumber(held[2])
if why == 'deadline' then
  if tonumber(held[3]) > now then return {'early', held[3]} end
  -- While the vehicle is offline and its session lives, the broker keeps the message and redelivers it: another publish would
  -- duplicate it.
  local p = redis.call('HMGET', PRESENCE, 'connected', 'session_until', 'heard')
  if p[1] == 'no' and (tonumber(p[2]) or 0) > now then
    redis.call('HSET', INFLIGHT, 'deadline', p[2])
    return {'early', p[2]}
  end
  -- It connected, but is silent and does not acknowledge: its disconnect may have been lost. Its next sign of life shows that it
  -- is here.
  if p[1] == 'yes' and (tonumber(p[3]) or 0) + tonumber(ARGV[2]) < now then redis.call('HSET', PRESENCE, 'connected', 'heard') end
elseif why == 'unsubscribed' then
  attempts = attempts - 1
  local since = tonumber(redis.call('HGET', PRESENCE, SUBSCRIBED) or '')
  if not since or since < tonumber(held[4]) then redis.call('HSET', PRESENCE, SUBSCRIBED, 'no') end -- else it has subscribed
elseif why == 'unsent' or why == 'cut' then
  attempts = attempts - 1
end
put_back(seq, attempts, why ~= 'unsent' and why ~= 'unsubscribed') -- others may be under way, since clocks differ
return {'released', tostring(attempts), held[5] or ''}
