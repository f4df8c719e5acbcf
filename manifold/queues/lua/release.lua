-- release.lua: what is in flight goes back to pending, keeping its place. Names its seq, so that a late answer never touches a newer entry.
-- ARGV[6] seq   ARGV[7] why   ARGV[8] when that claim was made, or '' for any
-- why: 'deadline' (only if it has passed), 'lost' (the session is gone), or, and then no attempt is counted, 'unsubscribed' (the
-- broker had nobody to give it to), 'unsent' (the broker never got it) or 'cut' (nobody knows whether it did)
-- returns {'released', attempts, '1' where the vehicle has subscribed, or given a sign, since it was claimed, or ''}
--   | {'early', deadline_ms} (not yet) | {'stale'} (another entry, another claim of it, or none is in flight)
local now, seq, why = tonumber(ARGV[1]), ARGV[6], ARGV[7]
local held = redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'deadline', 'published_at', 'resubscribed')
if held[1] ~= seq or (ARGV[8] ~= '' and held[4] ~= ARGV[8]) then return {'stale'} end
local attempts = tonumber(held[2])
if why == 'deadline' then
  if tonumber(held[3]) > now then return {'early', held[3]} end
  -- While the vehicle is away and its session lives, the broker holds the message and will redeliver it: publishing again would double it.
  local p = redis.call('HMGET', PRESENCE, 'connected', 'session_until', 'heard')
  if p[1] == 'no' and (tonumber(p[2]) or 0) > now then
    redis.call('HSET', INFLIGHT, 'deadline', p[2])
    return {'early', p[2]}
  end
  -- It was seen to connect, is silent, and does not acknowledge: nobody may have told that it went. The next sign tells that it is here.
  if p[1] == 'yes' and (tonumber(p[3]) or 0) + tonumber(ARGV[2]) < now then redis.call('HSET', PRESENCE, 'connected', 'heard') end
elseif why == 'unsubscribed' then
  attempts = attempts - 1
  local since = tonumber(redis.call('HGET', PRESENCE, SUBSCRIBED) or '')
  if not since or since < tonumber(held[4]) then redis.call('HSET', PRESENCE, SUBSCRIBED, 'no') end -- else it subscribed meanwhile
elseif why == 'unsent' or why == 'cut' then
  attempts = attempts - 1
end
put_back(seq, attempts, why ~= 'unsent' and why ~= 'unsubscribed') -- those are not under way; a deadline is one of somebody's clock
return {'released', tostring(attempts), held[5] or ''}
