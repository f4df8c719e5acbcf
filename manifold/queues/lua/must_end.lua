-- must_end.lua: list pending and parked entries, oldest first, that may no longer be sent. Changes nothing.
-- returns {'must_end', seq, code of the outcome, attempts, …}
local now, retention_ms = tonumber(ARGV[1]), tonumber(ARGV[5])
local found = list_must_end(PENDING, now, retention_ms)
for index, part in ipairs(list_must_end(PARKED, now, retention_ms)) do
  if index > 1 then found[#found + 1] = part end -- the first item is 'must_end'
end
return found
