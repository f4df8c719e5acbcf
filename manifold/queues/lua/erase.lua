-- erase.lua: remove all entries with seqs less than a given one from the owner's keys, in any state and without outcomes.
-- ARGV[6] the given seq
-- returns the number of removed entries, including ended ones
local before, gone = ARGV[6], 0

for _, queue in ipairs({PENDING, PARKED, DONE}) do
  for _, seq in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    if older(seq, before) then
      gone = gone + redis.call('ZREM', queue, seq)
      redis.call('HDEL', ATTEMPTS, seq, mark(seq))
    end
  end
end
for _, word in ipairs(redis.call('HKEYS', ATTEMPTS)) do
  if older(string.match(word, '^%d+') or word, before) then redis.call('HDEL', ATTEMPTS, word) end
end
local held = redis.call('HGET', INFLIGHT, 'seq')
if held and older(held, before) then redis.call('DEL', INFLIGHT) end
local newest = redis.call('HGETALL', COMPACTION)
for i = 1, #newest, 2 do
  if older(newest[i + 1], before) then redis.call('HDEL', COMPACTION, newest[i]) end
end
if redis.call('EXISTS', PENDING, PARKED, INFLIGHT, DONE) == 0 then redis.call('DEL', PRESENCE) end
return gone
