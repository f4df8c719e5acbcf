-- ecq_must_end.lua: list pending messages, oldest first, that are past their retention and not in flight. Changes nothing.
-- returns {'must_end', seq, code of the outcome, attempts, …}
return list_must_end(PENDING, tonumber(ARGV[1]), tonumber(ARGV[5]))
