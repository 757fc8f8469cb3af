-- Tables of the token store. Times are microseconds since 1970 on the time line of the store, which never goes back:
-- the clock of the database plus state.shift. `@schema@` stands for the schema of the configuration.

CREATE TABLE @schema@.state (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- The number of the last revocation, and up to which number they are no longer known.
    head bigint NOT NULL DEFAULT 0,
    forgotten bigint NOT NULL DEFAULT 0,
    -- The proofs (see revocations) of these two.
    head_proof uuid,
    forgotten_proof uuid,
    -- The latest time that anybody has written down, and by how much the clock was set back in all.
    latest bigint NOT NULL DEFAULT 0,
    shift bigint NOT NULL DEFAULT 0,
    owner text
) WITH (fillfactor = 10);
INSERT INTO @schema@.state DEFAULT VALUES;

CREATE TABLE @schema@.sessions (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- "C": in the order of code points, in every database.
    id text COLLATE "C" NOT NULL UNIQUE,
    username text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    body text NOT NULL,
    -- A digest of each group: names may be longer than an index allows.
    groups bytea[] NOT NULL,
    sequence bigint NOT NULL
);
CREATE INDEX sessions_of_user ON @schema@.sessions USING hash (username);
CREATE INDEX sessions_of_group ON @schema@.sessions USING gin (groups);
CREATE INDEX sessions_by_creation ON @schema@.sessions (created_at);
CREATE INDEX sessions_by_expiry ON @schema@.sessions (expires_at);

CREATE TABLE @schema@.tokens (
    digest bytea PRIMARY KEY,
    session bigint NOT NULL,
    kind smallint NOT NULL,
    issued_at bigint NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX tokens_of_session ON @schema@.tokens (session);
CREATE INDEX tokens_by_expiry ON @schema@.tokens (expires_at);

CREATE TABLE @schema@.revocations (
    sequence bigint PRIMARY KEY,
    -- A number of kind 'gap' revokes nothing: whoever follows drops what they have cached.
    kind text NOT NULL,
    value text NOT NULL,
    at bigint,
    author text NOT NULL,
    recorded_at bigint NOT NULL,
    keep_until bigint NOT NULL,
    undone boolean NOT NULL DEFAULT false,
    -- Random: the same number with another proof is another revocation, written after a failover that lost the first.
    proof uuid NOT NULL DEFAULT gen_random_uuid()
);
CREATE INDEX revocations_by_value ON @schema@.revocations USING hash (value);
CREATE INDEX revocations_by_time ON @schema@.revocations (recorded_at);

-- These need not survive a crash, so they are not in the write-ahead log: a standby has none of it. Their sequences are:
-- one that belongs to an unlogged table is unlogged, and PostgreSQL 15 leaves it broken when a standby is promoted ("bad
-- magic number in sequence").
CREATE SEQUENCE @schema@.record_numbers;
CREATE SEQUENCE @schema@.note_numbers;
CREATE SEQUENCE @schema@.count_numbers;

CREATE UNLOGGED TABLE @schema@.records (
    number bigint NOT NULL DEFAULT nextval('@schema@.record_numbers') PRIMARY KEY,
    digest bytea NOT NULL UNIQUE,
    expires_at bigint NOT NULL,
    data bytea NOT NULL
);
CREATE INDEX records_by_expiry ON @schema@.records (expires_at);

CREATE UNLOGGED TABLE @schema@.notes (
    number bigint NOT NULL DEFAULT nextval('@schema@.note_numbers') PRIMARY KEY,
    topic text COLLATE "C" NOT NULL,
    key_digest bytea NOT NULL,
    key text NOT NULL,
    written_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    data bytea NOT NULL,
    UNIQUE (topic, key_digest)
);
CREATE INDEX notes_by_number ON @schema@.notes (topic, number);
CREATE INDEX notes_by_expiry ON @schema@.notes (expires_at);

CREATE UNLOGGED TABLE @schema@.counts (
    key_digest bytea PRIMARY KEY,
    wide boolean NOT NULL,
    expires_at bigint NOT NULL,
    state bytea NOT NULL,
    number bigint NOT NULL DEFAULT nextval('@schema@.count_numbers')
) WITH (fillfactor = 70);
CREATE INDEX counts_by_expiry ON @schema@.counts (wide, expires_at);
