-- claim.lua: put the oldest pending entry in flight, if nothing is in flight and the vehicle is present and subscribed.
-- returns {'claimed', seq, attempts, deadline_ms, '', takes or ''} | {'busy', seq, attempts, deadline_ms}
--   | {'idle'} | {'absent'} | {'unsubscribed'} | {'must_end', seq, code of the outcome, attempts, …}
return claim()
