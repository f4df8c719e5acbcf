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
local now, wants_claim, event = tonumber(ARGV[1]), ARGV[6] == '1', ARGV[7]
local connected, since, last_expiry, session_until, takes, ecq_subscribed =
  unpack(redis.call('HMGET', PRESENCE, 'connected', 'since', 'expiry', 'session_until', TAKES, 'ecq'))
local flights, released = {}, {fanout = '', ecq = ''} -- the entries in flight of the two queues, and the seqs that are released
local ecq_may_begin = event == 'heard' or event == 'connected' -- whether the compacted queue may now have something to claim

-- Add the entry in flight of one of the two queues to `flights`. `put_back_entry` puts the entry back to pending.
local function add_flight(queue_type, inflight, put_back_entry)
  local seq, attempts, deadline, published_at, superseded =
    unpack(redis.call('HMGET', inflight, 'seq', 'attempts', 'deadline', 'published_at', 'superseded'))
  if not seq then return end
  local flight = {deadline = tonumber(deadline), published_at = tonumber(published_at)}
  function flight.release()
    put_back_entry(seq, tonumber(attempts), superseded)
    released[queue_type] = seq
  end
  -- The broker redelivers the entry in flight, so its deadline restarts.
  function flight.restart_deadline()
    redis.call('HSET', inflight, 'deadline', string.format('%.0f', now + wait_ms(tonumber(attempts))))
  end
  flights[#flights + 1], flights[queue_type] = flight, flight
end

add_flight('fanout', INFLIGHT, function(seq, attempts) put_back(seq, attempts, true) end)
add_flight('ecq', ECQ_INFLIGHT, function(seq, attempts, superseded) -- as `put_back` in _ecq.lua
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

if event == 'heard' then
  if connected ~= 'yes' then redis.call('HSET', PRESENCE, 'connected', 'heard') end
  redis.call('HSET', PRESENCE, 'heard', ARGV[1])
  redis.call('HDEL', PRESENCE, 'subscribed')
  if ecq_subscribed == 'no' then redis.call('HDEL', PRESENCE, 'ecq') end -- the event of its later SUBSCRIBE may be lost
  -- The vehicle counts as disconnected, with a session that has not ended, but has sent a sign of life. So it has just resumed
  -- the session, and its `connected` event is still on its way.
  local has_resumed = connected == 'no' and (tonumber(session_until) or 0) > now
  for _, flight in ipairs(flights) do
    if flight.deadline <= now then
      if has_resumed then flight.restart_deadline() else flight.release() end
    end
  end
elseif event == 'connected' then
  local at, is_clean_start, expiry, max_packet_bytes = tonumber(ARGV[8]), ARGV[9] == '1', ARGV[10], ARGV[11]
  if since and at < tonumber(since) then return STALE end
  local has_session_expired = session_until and session_until ~= '' and tonumber(session_until) < at
  local is_new_session = is_clean_start or has_session_expired
  redis.call('HSET', PRESENCE, 'connected', 'yes', 'since', ARGV[8], 'expiry', expiry, 'heard', ARGV[1], 'session_until', '')
  if max_packet_bytes ~= '' then
    redis.call('HSET', PRESENCE, TAKES, max_packet_bytes)
  elseif takes and since ~= ARGV[8] then -- keep the value of the same connection: the reconciler's event lacks it
    redis.call('HDEL', PRESENCE, TAKES)
  end
  if is_new_session then
    redis.call('HDEL', PRESENCE, 'subscribed')
    -- The compacted queue starts with the SUBSCRIBE of the new session, unless the event of that SUBSCRIBE was handled before
    -- this one. Messages that were published between connect and SUBSCRIBE are lost, although EMQX confirms them, because it
    -- delivers them to the old session.
    local subscribed_at, flight = tonumber(ecq_subscribed or '') or 0, flights.ecq
    ecq_may_begin = subscribed_at >= at
    if not ecq_may_begin then redis.call('HDEL', PRESENCE, 'ecq') end
    if flight and ecq_may_begin then
      flight.is_lost = flight.published_at < subscribed_at and flight.published_at <= at + MAX_LINGER_MS
    elseif flight and flight.published_at > at and flight.published_at <= at + MAX_LINGER_MS then
      redis.call('HSET', ECQ_INFLIGHT, 'unheard', '1') -- ecq_subscribe.lua decides whether the message is lost
    end
  end
  for _, flight in ipairs(flights) do
    if not is_new_session then
      flight.restart_deadline()
    elseif flight.published_at <= at or flight.is_lost then -- entries that were published later went to the new session
      flight.release()
    end
  end
elseif event == 'disconnected' then
  local connected_at, at, given_expiry = ARGV[8], tonumber(ARGV[9]), ARGV[10]
  if since and tonumber(connected_at) < tonumber(since) then return STALE end
  -- If another dispatcher has not handled the `connected` event of this connection yet, the session expiry is unknown. Then the
  -- entry in flight waits for its deadline, because the session may not have ended, and the broker may redeliver the entry.
  local expiry = nil
  if given_expiry ~= '' then
    expiry = tonumber(given_expiry)
  elseif since == connected_at then
    expiry = tonumber(last_expiry or '')
  end
  local ends_at = expiry and string.format('%.0f', at + expiry * 1000) or ''
  redis.call('HSET', PRESENCE, 'connected', 'no', 'since', connected_at, 'expiry', expiry or '', 'session_until', ends_at)
  if takes then redis.call('HDEL', PRESENCE, TAKES) end -- the next connection may accept larger packets
  for _, flight in ipairs(flights) do
    if expiry == 0 and flight.published_at <= at then flight.release() end
  end
elseif event == 'subscribed' then
  redis.call('HSET', PRESENCE, 'subscribed', ARGV[1])
elseif event == 'unsubscribed' then
  redis.call('HSET', PRESENCE, 'subscribed', 'no')
end

-- Any client id may connect. So the presence of a vehicle for which nothing waits expires: after the retention if the vehicle is
-- connected, because it need not send anything while it is, and otherwise soon. A claim makes the presence persistent. Further
-- events of a connected vehicle do not change the TTL.
if event == 'connected' or event == 'disconnected' or connected ~= 'yes' then
  if redis.call('EXISTS', PENDING, INFLIGHT, PARKED, ECQ_PENDING, ECQ_KEYS) > 0 then
    keep_presence()
  else
    local ttl_ms = event == 'connected' and tonumber(ARGV[5]) or tonumber(ARGV[2]) + MAX_SKEW_MS
    redis.call('HSET', PRESENCE, 'passing', '1')
    redis.call('PEXPIRE', PRESENCE, ttl_ms)
  end
end

local ecq_wake = ''
if event == 'connected' and redis.call('EXISTS', ECQ_INFLIGHT) == 1 then
  ecq_wake = '1'
elseif ecq_may_begin and redis.call('EXISTS', ECQ_PENDING) == 1
  and redis.call('EXISTS', ECQ_INFLIGHT) == 0 then
  SUBSCRIBED = 'ecq' -- so that `presence_state` reads the subscription of the compacted queue
  if presence_state(now, tonumber(ARGV[2])) == 'here' then ecq_wake = '1' end
  SUBSCRIBED = 'subscribed'
end

local next_claim = {'none'}
if wants_claim then
  next_claim = claim()
  -- Note that the vehicle has sent a sign of life since the claim of the entry in flight. If the broker has no subscriber for
  -- that entry, release.lua then reports that the vehicle may have subscribed since.
  if flights.fanout and released.fanout == '' then redis.call('HSET', INFLIGHT, 'resubscribed', '1') end
end
return {'noted', released.fanout, released.ecq, ecq_wake, unpack(next_claim)}
