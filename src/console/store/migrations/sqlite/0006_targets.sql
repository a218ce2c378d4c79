-- Whom a broadcast was meant for: everybody, a group, or those that an expression picks. Of older ones nothing is
-- said: they were for everybody.
ALTER TABLE command ADD COLUMN target TEXT;
