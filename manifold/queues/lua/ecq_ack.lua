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
--   'known': the message was acknowledged before
--   'undone': a later rewind has undone this acknowledgement
--   'unknown': the message was superseded or never queued here; now it is remembered, so that it cannot come back
--   'sent': its publish may be under way, so it is not passed over yet; it is pending, and nothing was claimed
local seq = ARGV[6]
local held = redis.call('HMGET', INFLIGHT, 'seq', 'published_at', 'attempts', 'superseded')
local state = redis.call('HMGET', STATE, 'epoch', 'rewound_to')
local epoch, is_held, has_expired = state[1] or '0', held[1] == seq, ARGV[11] == '2'

local function answer(word)
  local following = {'none'}
  if ARGV[7] == '1' then following = claim() end
  return {word, is_held and held[2] or '', is_held and held[3] or '', epoch, unpack(following)}
end

if ARGV[11] ~= '0' then
  local sent = put_back_if_sent(seq, is_held, held[3])
  if sent then return {'sent', '', '', epoch, unpack(sent)} end
end
local is_before = ARGV[9] ~= '' and older(ARGV[9], epoch) and older(seq, epoch) -- as in manifold.contracts.ecq_state.epoch_of
if not has_expired and is_before and state[2] and not older(seq, state[2]) then return answer('undone') end
local is_pending = redis.call('ZSCORE', PENDING, seq)
if not is_pending and (has_expired or redis.call('ZSCORE', DELIVERED, seq)) then return answer('known') end
if KEYS[9] then
  local told = redis.pcall('XADD', KEYS[9], '*', 'o', ARGV[12] .. (epoch ~= '0' and ',"epoch":' .. epoch or '') .. '}')
  if type(told) == 'table' then -- an error in a script does not roll back earlier writes
    return redis.error_reply('OUTCOMES cannot be recorded: ' .. told.err)
  end
end
if is_held and held[4] then
  drop(seq)
else
  if is_held then redis.call('DEL', INFLIGHT) end
  if is_pending then
    redis.call('ZREM', PENDING, seq)
    redis.call('HDEL', ATTEMPTS, seq)
  end
  if not has_expired then redis.call('ZADD', DELIVERED, seq, seq) end
end
advance(seq, ARGV[8])
if has_expired then
  redis.call('HSET', STATE, 'expired_at', ARGV[8])
  forget({seq})
end
prune(tonumber(ARGV[1]) - tonumber(ARGV[10]))
return answer(is_pending and 'ended' or 'unknown')
