-- update_presence.lua: note what is known of a vehicle's connection, and claim if asked to.
-- ARGV[6] '1' to claim   ARGV[7] what was seen, then its own arguments:
--   'heard'                                            an online or a heartbeat
--   'connected', at_ms, '1' if clean start, expiry_s   the session outlives the connection by expiry_s seconds
--   'disconnected', connected_at_ms, at_ms, expiry_s or ''
--   'subscribed' | 'unsubscribed'                      to the vehicle's request topic
-- returns {word, released seq or '', claim's answer…}; word: 'noted', or 'stale' (a newer connection is known: nothing was changed).
-- The claim's answer is {'none'} where none was asked for.
local now, sign = tonumber(ARGV[1]), ARGV[7]
local CLOCKS_MS = 60000 -- by which the clocks of replicas may differ
local p = redis.call('HMGET', PRESENCE, 'connected', 'since', 'expiry', 'session_until')
local held = redis.call('HMGET', INFLIGHT, 'seq', 'attempts', 'deadline', 'published_at')
local released = ''

local function let_go()
  if not held[1] then return end
  put_back(held[1], tonumber(held[2]))
  released = held[1]
end

-- The broker redelivers what is in flight: a full deadline from here.
local function wait_again()
  redis.call('HSET', INFLIGHT, 'deadline', string.format('%.0f', now + wait_ms(tonumber(held[2]))))
end

if sign == 'heard' then
  if p[1] ~= 'yes' then redis.call('HSET', PRESENCE, 'connected', 'heard') end
  redis.call('HSET', PRESENCE, 'heard', ARGV[1])
  redis.call('HDEL', PRESENCE, 'subscribed')
  if held[1] and tonumber(held[3]) <= now then
    -- Away with a living session, and heard: it has just resumed, and the event that says so is still on its way.
    if p[1] == 'no' and (tonumber(p[4]) or 0) > now then wait_again() else let_go() end
  end
elseif sign == 'connected' then
  local at, clean, expiry = tonumber(ARGV[8]), ARGV[9] == '1', ARGV[10]
  if p[2] and at < tonumber(p[2]) then return {'stale', '', 'none'} end
  local session_expired = p[4] and p[4] ~= '' and tonumber(p[4]) < at
  redis.call('HSET', PRESENCE, 'connected', 'yes', 'since', ARGV[8], 'expiry', expiry, 'heard', ARGV[1], 'session_until', '')
  if clean or session_expired then
    redis.call('HDEL', PRESENCE, 'subscribed')
    if held[1] and tonumber(held[4]) <= at then let_go() end -- what was published later went to the new session
  elseif held[1] then
    wait_again()
  end
elseif sign == 'disconnected' then
  if p[2] and tonumber(ARGV[8]) < tonumber(p[2]) then return {'stale', '', 'none'} end
  -- Where its own `connected` is still on its way to another dispatcher, its expiry is not known: what is in flight waits for its
  -- deadline, since the session may live and the broker would redeliver it.
  local expiry = tonumber(ARGV[10] ~= '' and ARGV[10] or p[2] == ARGV[8] and p[3] or '')
  local session_until = expiry and string.format('%.0f', tonumber(ARGV[9]) + expiry * 1000) or ''
  redis.call('HSET', PRESENCE, 'connected', 'no', 'since', ARGV[8], 'expiry', expiry or '', 'session_until', session_until)
  if expiry == 0 and held[1] and tonumber(held[4]) <= tonumber(ARGV[9]) then let_go() end
elseif sign == 'subscribed' then
  redis.call('HSET', PRESENCE, 'subscribed', ARGV[1])
elseif sign == 'unsubscribed' then
  redis.call('HSET', PRESENCE, 'subscribed', 'no')
end

-- Anybody may come under any name. What is known of one for whom nothing waits goes by itself: soon, or, while it is connected and need
-- say nothing, after the retention. A claim makes it stay; further signs of one that is connected change nothing in that.
if sign == 'connected' or sign == 'disconnected' or p[1] ~= 'yes' then
  if redis.call('EXISTS', PENDING, INFLIGHT, PARKED) > 0 then
    stay()
  else
    redis.call('HSET', PRESENCE, 'passing', '1')
    redis.call('PEXPIRE', PRESENCE, sign == 'connected' and tonumber(ARGV[5]) or tonumber(ARGV[2]) + CLOCKS_MS)
  end
end

local following = {'none'}
if ARGV[6] == '1' then following = claim() end
return {'noted', released, unpack(following)}
