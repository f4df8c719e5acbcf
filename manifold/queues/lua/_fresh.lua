-- _fresh.lua: a shortcut of enqueue.lua for an owner with no presence, no ended and no parked entries. Almost every owner of a
-- rebuild is like this. The shortcut precedes the shared code of the verbs, because defining those functions takes longer than
-- the shortcut itself.
-- ARGV and the reply are those of enqueue.lua. The youngest entry is added first, because Redis searches a small sorted set from
-- its oldest member.
local has_compaction, entry_count = ARGV[6] == '1', #ARGV - 6
local has_few_entries = entry_count > 0 and entry_count <= 2000 -- Lua's stack holds some 8,000 arguments
if not has_compaction and has_few_entries and redis.call('EXISTS', KEYS[3], KEYS[5], KEYS[6]) == 0 then
  local scores_and_members, n = {}, 0
  for i = #ARGV, 7, -1 do
    local seq = ARGV[i]
    scores_and_members[n + 1], scores_and_members[n + 2] = seq, seq
    n = n + 2
  end
  local queued = redis.call('ZADD', KEYS[1], 'NX', unpack(scores_and_members))
  return {queued > 0 and 'queued' or 'known', queued}
end
