-- update_presence.lua: update a vehicle's presence, and claim from its fanout queue if requested.
-- KEYS[8…12] pending, inflight, attempts, messages and keys of the vehicle's compacted queue, which shares the vehicle's presence
-- ARGV[6] '1' to claim   ARGV[7] event, then its own arguments:
--   'heard'                                            an online message or a heartbeat
--   'connected', at_ms, '1' if clean start, expiry_s,  expiry_s: session expiry after the connection ends
--       bytes or ''                                    largest packet that the vehicle accepts
--   'disconnected', connected_at_ms, at_ms, expiry_s or ''
--   'subscribed' | 'unsubscribed'                      to the vehicle's request topic
-- returns {word, released seq or '', released seq of the compacted queue or '', '1' if a dispatcher should check the compacted
-- queue now, or '', claim's reply…}
-- word is 'noted', or 'stale' if a newer connection is known, and nothing has changed. claim's reply is {'none'} if no claim was
-- requested.
local ECQ_PENDING, ECQ_INFLIGHT, ECQ_ATTEMPTS, ECQ_MESSAGES, ECQ_KEYS = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local STALE = {'stale', '', '', '', 'none'}
local MAX_SKEW_MS = 60000 -- maximum clock difference between replicas
local MAX_LINGER_MS = 500 -- how long a busy broker may still deliver to a session that a clean start has ended
local now, sign = tonumber(ARGV[1]), ARGV[7]
local p = redis.call('HMGET', PRESENCE, 'connected', 'since', 'expiry', 'session_until', TAKES, 'ecq')
local flights, released = {}, {fanout = '', ecq = ''} -- the entries in flight of the two queues, and the seqs that are released
local ecq_may_begin = sign == 'heard' or sign == 'connected'

-- Collect the entry in flight of one of the two queues. `let_go` puts the entry back to pending.
local function in_flight(queue_type, inflight, let_go)
  local held = redis.call('HMGET', inflight, 'seq', 'attempts', 'deadline', 'published_at', 'superseded')
  if not held[1] then return end
  local flight = {deadline = tonumber(held[3]), published_at = tonumber(held[4])}
  function flight.let_go()
    let_go(held[1], tonumber(held[2]), held[5])
    released[queue_type] = held[1]
  end
  -- The broker redelivers the entry in flight, so its deadline restarts.
  function flight.wait_again()
    redis.call('HSET', inflight, 'deadline', string.format('%.0f', now + wait_ms(tonumber(held[2]))))
  end
  flights[#flights + 1], flights[queue_type] = flight, flight
end

in_flight('fanout', INFLIGHT, function(seq, attempts) put_back(seq, attempts, true) end)
in_flight('ecq', ECQ_INFLIGHT, function(seq, attempts, superseded) -- as `put_back` in _ecq.lua
  if not superseded then note_sent('ecq_sent', ECQ_INFLIGHT) end
  redis.call('DEL', ECQ_INFLIGHT)
  if superseded then
    redis.call('ZREM', ECQ_PENDING, seq)
    redis.call('HDEL', ECQ_MESSAGES, seq)
    redis.call('HDEL', ECQ_ATTEMPTS, seq)
  else
    redis.call('HSET', ECQ_ATTEMPTS, seq, attempts)
  end
end)

if sign == 'heard' then
  if p[1] ~= 'yes' then redis.call('HSET', PRESENCE, 'connected', 'heard') end
  redis.call('HSET', PRESENCE, 'heard', ARGV[1])
  redis.call('HDEL', PRESENCE, 'subscribed')
  if p[6] == 'no' then redis.call('HDEL', PRESENCE, 'ecq') end -- the event of its later SUBSCRIBE may be lost
  for _, flight in ipairs(flights) do
    if flight.deadline <= now then
      -- The vehicle counts as disconnected, with a session that has not ended, but has sent a sign of life. So it has just
      -- resumed the session, and its `connected` event is still on its way.
      if p[1] == 'no' and (tonumber(p[4]) or 0) > now then flight.wait_again() else flight.let_go() end
    end
  end
elseif sign == 'connected' then
  local at, clean, expiry = tonumber(ARGV[8]), ARGV[9] == '1', ARGV[10]
  if p[2] and at < tonumber(p[2]) then return STALE end
  local session_expired = p[4] and p[4] ~= '' and tonumber(p[4]) < at
  redis.call('HSET', PRESENCE, 'connected', 'yes', 'since', ARGV[8], 'expiry', expiry, 'heard', ARGV[1], 'session_until', '')
  if ARGV[11] ~= '' then
    redis.call('HSET', PRESENCE, TAKES, ARGV[11])
  elseif p[5] and p[2] ~= ARGV[8] then -- keep the value of the same connection: the reconciler's event lacks it
    redis.call('HDEL', PRESENCE, TAKES)
  end
  if clean or session_expired then
    redis.call('HDEL', PRESENCE, 'subscribed')
    -- The compacted queue starts with the SUBSCRIBE of the new session, unless the event of that SUBSCRIBE was handled before
    -- this one. Messages that were published between connect and SUBSCRIBE are lost, although EMQX confirms them, because it
    -- delivers them to the old session.
    local subscribed_at, flight = tonumber(p[6] or '') or 0, flights.ecq
    ecq_may_begin = subscribed_at >= at
    if not ecq_may_begin then redis.call('HDEL', PRESENCE, 'ecq') end
    if flight and ecq_may_begin then
      flight.is_lost = flight.published_at < subscribed_at and flight.published_at <= at + MAX_LINGER_MS
    elseif flight and flight.published_at > at and flight.published_at <= at + MAX_LINGER_MS then
      redis.call('HSET', ECQ_INFLIGHT, 'unheard', '1') -- ecq_subscribe.lua decides whether the message is lost
    end
  end
  for _, flight in ipairs(flights) do
    if not (clean or session_expired) then
      flight.wait_again()
    elseif flight.published_at <= at or flight.is_lost then -- entries that were published later went to the new session
      flight.let_go()
    end
  end
elseif sign == 'disconnected' then
  if p[2] and tonumber(ARGV[8]) < tonumber(p[2]) then return STALE end
  -- If another dispatcher has not handled the `connected` event of this connection yet, the session expiry is unknown. Then the
  -- entry in flight waits for its deadline, because the session may not have ended, and the broker may redeliver the entry.
  local expiry = tonumber(ARGV[10] ~= '' and ARGV[10] or p[2] == ARGV[8] and p[3] or '')
  local session_until = expiry and string.format('%.0f', tonumber(ARGV[9]) + expiry * 1000) or ''
  redis.call('HSET', PRESENCE, 'connected', 'no', 'since', ARGV[8], 'expiry', expiry or '', 'session_until', session_until)
  if p[5] then redis.call('HDEL', PRESENCE, TAKES) end -- the next connection may accept larger packets
  for _, flight in ipairs(flights) do
    if expiry == 0 and flight.published_at <= tonumber(ARGV[9]) then flight.let_go() end
  end
elseif sign == 'subscribed' then
  redis.call('HSET', PRESENCE, 'subscribed', ARGV[1])
elseif sign == 'unsubscribed' then
  redis.call('HSET', PRESENCE, 'subscribed', 'no')
end

-- Any client id may connect. So the presence of a vehicle for which nothing waits expires: after the retention if the vehicle is
-- connected, because it need not send anything while it is, and otherwise soon. A claim makes the presence persistent. Further
-- events of a connected vehicle do not change the TTL.
if sign == 'connected' or sign == 'disconnected' or p[1] ~= 'yes' then
  if redis.call('EXISTS', PENDING, INFLIGHT, PARKED, ECQ_PENDING, ECQ_KEYS) > 0 then
    stay()
  else
    redis.call('HSET', PRESENCE, 'passing', '1')
    redis.call('PEXPIRE', PRESENCE, sign == 'connected' and tonumber(ARGV[5]) or tonumber(ARGV[2]) + MAX_SKEW_MS)
  end
end

local ecq_wake = ''
if sign == 'connected' and redis.call('EXISTS', ECQ_INFLIGHT) == 1 then
  ecq_wake = '1'
elseif ecq_may_begin and redis.call('EXISTS', ECQ_PENDING) == 1
  and redis.call('EXISTS', ECQ_INFLIGHT) == 0 then
  SUBSCRIBED = 'ecq'
  if presence_state(now, tonumber(ARGV[2])) == 'here' then ecq_wake = '1' end
  SUBSCRIBED = 'subscribed'
end

local following = {'none'}
if ARGV[6] == '1' then following = claim() end
-- Note that the vehicle has sent a sign of life since the claim. If the broker has no subscriber for the entry in flight,
-- release.lua then reports that the vehicle may have subscribed since.
if ARGV[6] == '1' and flights.fanout and released.fanout == '' then redis.call('HSET', INFLIGHT, 'resubscribed', '1') end
return {'noted', released.fanout, released.ecq, ecq_wake, unpack(following)}
