-- update_presence.lua: note what is known of a vehicle's connection, and claim from its fanout queue if asked to.
-- KEYS[8…12] pending, inflight, attempts, messages and keys of its compacted queue: the vehicle has one presence for both
-- ARGV[6] '1' to claim   ARGV[7] what was seen, then its own arguments:
--   'heard'                                            an online or a heartbeat
--   'connected', at_ms, '1' if clean start, expiry_s,  the session outlives the connection by expiry_s seconds,
--       bytes or ''                                    which takes packets of so many
--   'disconnected', connected_at_ms, at_ms, expiry_s or ''
--   'subscribed' | 'unsubscribed'                      to the vehicle's request topic
-- returns {word, released seq or '', the same of the compacted queue, '1' where a dispatcher should look at that now, or '', claim's answer…}
-- word: 'noted', or 'stale' (a newer connection is known: nothing was changed). The claim's answer is {'none'} where none was asked for.
local ECQ_PENDING, ECQ_INFLIGHT, ECQ_ATTEMPTS, ECQ_MESSAGES, ECQ_KEYS = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local STALE = {'stale', '', '', '', 'none'}
local CLOCKS_MS = 60000 -- by which the clocks of replicas may differ
local LINGERS_MS = 500 -- for so long a busy broker may go on handing messages to a session that a clean start has ended
local now, sign = tonumber(ARGV[1]), ARGV[7]
local p = redis.call('HMGET', PRESENCE, 'connected', 'since', 'expiry', 'session_until', TAKES, 'ecq')
local flights, released = {}, {fanout = '', ecq = ''} -- what is in flight, and what was let go
local ecq_may_begin = sign == 'heard' or sign == 'connected'

local function in_flight(flavour, inflight, let_go)
  local held = redis.call('HMGET', inflight, 'seq', 'attempts', 'deadline', 'published_at', 'superseded')
  if not held[1] then return end
  local flight = {deadline = tonumber(held[3]), published_at = tonumber(held[4])}
  function flight.let_go()
    let_go(held[1], tonumber(held[2]), held[5])
    released[flavour] = held[1]
  end
  -- The broker redelivers what is in flight: a full deadline from here.
  function flight.wait_again()
    redis.call('HSET', inflight, 'deadline', string.format('%.0f', now + wait_ms(tonumber(held[2]))))
  end
  flights[#flights + 1], flights[flavour] = flight, flight
end

in_flight('fanout', INFLIGHT, function(seq, attempts) put_back(seq, attempts, true) end)
in_flight('ecq', ECQ_INFLIGHT, function(seq, attempts, superseded) -- as put_back in _ecq.lua
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
  if p[6] == 'no' then redis.call('HDEL', PRESENCE, 'ecq') end -- its SUBSCRIBE may have been missed
  for _, flight in ipairs(flights) do
    if flight.deadline <= now then
      -- Away with a living session, and heard: it has just resumed, and the event that says so is still on its way.
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
  elseif p[5] and p[2] ~= ARGV[8] then -- else this connection's own event has said so, and what was found by comparing does not
    redis.call('HDEL', PRESENCE, TAKES)
  end
  if clean or session_expired then
    redis.call('HDEL', PRESENCE, 'subscribed')
    -- Its SUBSCRIBE says when to begin with the compacted queue, unless it was handled before this. What was published in between
    -- reached nobody, whatever the broker answered: EMQX confirms what it hands to the session that this one replaces.
    local subscribed_at, flight = tonumber(p[6] or '') or 0, flights.ecq
    ecq_may_begin = subscribed_at >= at
    if not ecq_may_begin then redis.call('HDEL', PRESENCE, 'ecq') end
    if flight and ecq_may_begin then
      flight.is_lost = flight.published_at < subscribed_at and flight.published_at <= at + LINGERS_MS
    elseif flight and flight.published_at > at and flight.published_at <= at + LINGERS_MS then
      redis.call('HSET', ECQ_INFLIGHT, 'unheard', '1') -- its SUBSCRIBE tells: ecq_subscribe.lua
    end
  end
  for _, flight in ipairs(flights) do
    if not (clean or session_expired) then
      flight.wait_again()
    elseif flight.published_at <= at or flight.is_lost then -- what was published later went to the new session
      flight.let_go()
    end
  end
elseif sign == 'disconnected' then
  if p[2] and tonumber(ARGV[8]) < tonumber(p[2]) then return STALE end
  -- Where its own `connected` is still on its way to another dispatcher, its expiry is not known: what is in flight waits for its
  -- deadline, since the session may live and the broker would redeliver it.
  local expiry = tonumber(ARGV[10] ~= '' and ARGV[10] or p[2] == ARGV[8] and p[3] or '')
  local session_until = expiry and string.format('%.0f', tonumber(ARGV[9]) + expiry * 1000) or ''
  redis.call('HSET', PRESENCE, 'connected', 'no', 'since', ARGV[8], 'expiry', expiry or '', 'session_until', session_until)
  if p[5] then redis.call('HDEL', PRESENCE, TAKES) end -- the next connection may take more
  for _, flight in ipairs(flights) do
    if expiry == 0 and flight.published_at <= tonumber(ARGV[9]) then flight.let_go() end
  end
elseif sign == 'subscribed' then
  redis.call('HSET', PRESENCE, 'subscribed', ARGV[1])
elseif sign == 'unsubscribed' then
  redis.call('HSET', PRESENCE, 'subscribed', 'no')
end

-- Anybody may come under any name. What is known of one for whom nothing waits goes by itself: soon, or, while it is connected and need
-- say nothing, after the retention. A claim makes it stay; further signs of one that is connected change nothing in that.
if sign == 'connected' or sign == 'disconnected' or p[1] ~= 'yes' then
  if redis.call('EXISTS', PENDING, INFLIGHT, PARKED, ECQ_PENDING, ECQ_KEYS) > 0 then
    stay()
  else
    redis.call('HSET', PRESENCE, 'passing', '1')
    redis.call('PEXPIRE', PRESENCE, sign == 'connected' and tonumber(ARGV[5]) or tonumber(ARGV[2]) + CLOCKS_MS)
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
-- Where the broker has nobody for what is in flight, it is sent again: it may have subscribed since (release.lua).
if ARGV[6] == '1' and flights.fanout and released.fanout == '' then redis.call('HSET', INFLIGHT, 'resubscribed', '1') end
return {'noted', released.fanout, released.ecq, ecq_wake, unpack(following)}
