-- claim.lua: put the oldest pending entry in flight, if nothing is and the vehicle is here.
-- ARGV[1] now_ms   ARGV[2] presence_ms   ARGV[3] its terms, as _owner.lua reads them
-- returns {'claimed', seq, attempts, deadline_ms} | {'busy', seq, attempts, deadline_ms} | {'idle'} | {'absent'} | {'unsubscribed'}
return claim(tonumber(ARGV[1]), tonumber(ARGV[2]), terms_of(ARGV[3]))
