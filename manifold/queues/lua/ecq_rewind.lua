-- ecq_rewind.lua: what is live is sent again, from one message on. A rewind that is older than another one that was applied changes nothing.
-- ARGV[6] the rewind's own seq   ARGV[7] the first seq that is sent again   ARGV[8] that one less 1: a Lua number would lose its last digits
-- returns {word, how many messages are pending again}; word: 'ready' (wake a dispatcher), 'queued', or 'known' (it was applied before)
local rewind, first = ARGV[6], ARGV[7]
local state = redis.call('HMGET', STATE, 'epoch', 'rewound_to', 'acked_seq')
if state[1] and not older(state[1], rewind) then return {is_ready() and 'ready' or 'known', 0} end
-- Of nothing, nothing has to be remembered: any client may say so for itself, as often as it likes.
if redis.call('EXISTS', COMPACTION, STATE) == 0 then return {'known', 0} end
local undone, is_live, back = {}, {}, 0
for _, seq in ipairs(redis.call('ZRANGE', DELIVERED, 0, -1)) do
  if not older(seq, first) then undone[#undone + 1] = seq end
end
if #undone > 0 then -- else the next one of many rewinds would look at all that is live, for nothing
  for _, seq in ipairs(redis.call('HVALS', COMPACTION)) do is_live[seq] = true end
end
for _, seq in ipairs(undone) do
  redis.call('ZREM', DELIVERED, seq)
  if is_live[seq] then
    redis.call('ZADD', PENDING, seq, seq)
    back = back + 1
  end
end
-- The smallest first of all rewinds: what a Redis that is filled from the lake holds by then may be older than all of them.
if not state[2] or older(first, state[2]) then redis.call('HSET', STATE, 'rewound_to', first) end
redis.call('HSET', STATE, 'epoch', rewind)
if state[3] and older(ARGV[8], state[3]) then redis.call('HSET', STATE, 'acked_seq', ARGV[8]) end
return {is_ready() and 'ready' or 'queued', back}
