-- ecq_ack.lua: acknowledge a message in any state, advance the position, and claim the next message. The message stays readable
-- while it is live.
-- KEYS[9] the outcomes stream; absent in a cluster, where it is in another slot
-- ARGV[6] seq   ARGV[7] '1' to claim the next message   ARGV[8] time of the acknowledgement, Unix ms
-- ARGV[9] epoch of the record, or '' for the current epoch   ARGV[10] retention of acknowledged messages, ms
-- ARGV[11] '1' if the message is passed over without acknowledgement; '2' if it has expired, so that it is removed for good and
-- no rewind makes it pending again; otherwise '0'
-- with KEYS[9]: ARGV[12] the record as JSON without the epoch and its end
-- returns {word, published_at_ms or '', attempts or '', epoch, claim's reply…}, where word is one of:
--   'ended'
--   'known': the message was acknowledged before, or is to expire, but is not pending
--   'undone': a later rewind has undone this acknowledgement
--   'unknown': the message was superseded or never queued here; now it is remembered, so that it cannot come back
--   'sent': its publish may be under way, so it is not passed over yet; it is pending, and nothing was claimed
local seq, record_epoch = ARGV[6], ARGV[9]
local was_acknowledged, has_expired = ARGV[11] == '0', ARGV[11] == '2'
local held_seq, published_at, attempts, is_superseded =
  unpack(redis.call('HMGET', INFLIGHT, 'seq', 'published_at', 'attempts', 'superseded'))
local epoch, rewound_to = unpack(redis.call('HMGET', STATE, 'epoch', 'rewound_to'))
epoch = epoch or '0'
local is_in_flight = held_seq == seq

local function reply(word)
  local next_claim = {'none'}
  if ARGV[7] == '1' then next_claim = claim() end
  return {word, is_in_flight and published_at or '', is_in_flight and attempts or '', epoch, unpack(next_claim)}
end

if not was_acknowledged then
  local busy = put_back_if_sent(seq, is_in_flight, attempts)
  if busy then return {'sent', '', '', epoch, unpack(busy)} end
end

-- as in manifold.contracts.ecq_state.epoch_of
local is_before_rewind = record_epoch ~= '' and older(record_epoch, epoch) and older(seq, epoch)
local is_rewound = rewound_to and not older(seq, rewound_to)
if not has_expired and is_before_rewind and is_rewound then return reply('undone') end
local is_pending = redis.call('ZSCORE', PENDING, seq)
if not is_pending and (has_expired or redis.call('ZSCORE', DELIVERED, seq)) then return reply('known') end

if KEYS[9] then
  local record = ARGV[12]
  if epoch ~= '0' then record = record .. ',"epoch":' .. epoch end
  local added = redis.pcall('XADD', KEYS[9], '*', 'o', record .. '}')
  if type(added) == 'table' then -- an error in a script does not roll back earlier writes
    return redis.error_reply('OUTCOMES cannot be recorded: ' .. added.err)
  end
end

if is_in_flight and is_superseded then
  remove_superseded(seq)
else
  if is_in_flight then redis.call('DEL', INFLIGHT) end
  if is_pending then
    redis.call('ZREM', PENDING, seq)
    redis.call('HDEL', ATTEMPTS, seq)
  end
  if not has_expired then redis.call('ZADD', DELIVERED, seq, seq) end
end
advance(seq, ARGV[8])
if has_expired then
  redis.call('HSET', STATE, 'expired_at', ARGV[8])
  remove_messages({seq})
end
prune(tonumber(ARGV[1]) - tonumber(ARGV[10]))
return reply(is_pending and 'ended' or 'unknown')
