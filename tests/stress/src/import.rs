//! Rows that another command than a claim inserts, as COPY and a restore do, while the ring
//! rotates. An imported row counts as a claim: its message must not be claimed within the
//! retention.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Result;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio_postgres::{Client, Error};

use super::line::{connect, expect_kill};
use super::run::Arena;

/// The identities of imported messages begin here, so that no client claims them.
const FIRST: i64 = 1 << 40;
/// The number of imported messages that are claimed again.
const REMEMBERED: usize = 400;

/// The functions of the import. The destination of the imported messages does not move between
/// rings.
pub const SCHEMA: &str = "
CREATE FUNCTION import_message(attempt bigint, identity bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    before timestamptz;
    slice  int2;
BEGIN
    -- The rows are in the slices in which a claim would be.
    LOCK TABLE idem.ring IN ROW EXCLUSIVE MODE;
    before := clock_timestamp();
    FOR slice IN
        SELECT unnest(r.slices[1 : 1 + (r.phase = 'opening')::integer]) FROM idem.ring r
         WHERE r.name = 'standard'
    LOOP
        EXECUTE format('INSERT INTO idem.inbox_standard_%s (key, claimed_at, destination, id)
                        SELECT idem.key_of($1), clock_timestamp(), d.id, $1
                          FROM idem.destination d WHERE d.name = ''imports''', slice)
          USING 'message ' || identity;
    END LOOP;
    INSERT INTO handled
        VALUES (attempt, identity, extract(epoch FROM before) * 1000000,
                extract(epoch FROM clock_timestamp()) * 1000000, pg_current_xact_id());
END
$$;
CREATE FUNCTION claim_imported(attempt bigint, identity bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    before  timestamptz := clock_timestamp();
    claimed boolean := idem_try_claim('message ' || identity, 'imports');
BEGIN
    IF claimed THEN
        INSERT INTO handled
            VALUES (attempt, identity, extract(epoch FROM before) * 1000000,
                    extract(epoch FROM clock_timestamp()) * 1000000, pg_current_xact_id());
    END IF;
    RETURN claimed;
END
$$;
BEGIN;
SELECT idem_try_claim('first', 'imports');
COMMIT";

/// Imports messages and claims them again, until the run ends.
pub(super) async fn work(arena: Arc<Arena>, number: i64) -> Result<()> {
    let mut importer = Importer {
        rng: SmallRng::seed_from_u64(arena.config.seed ^ 0x1A9),
        next_attempt: number << 40,
        imported: VecDeque::new(),
        arena,
    };
    while importer.arena.is_open() {
        let client = connect(&importer.arena.url).await?;
        if let Err(error) = importer.session(&client).await {
            expect_kill(error)?;
        }
    }
    Ok(())
}

struct Importer {
    arena: Arc<Arena>,
    rng: SmallRng,
    next_attempt: i64,
    /// The messages whose import was reported committed.
    imported: VecDeque<i64>,
}

impl Importer {
    async fn session(&mut self, client: &Client) -> Result<(), Error> {
        let import = client.prepare("SELECT import_message($1, $2)").await?;
        let claim = client.prepare("SELECT claim_imported($1, $2)").await?;
        while self.arena.is_open() {
            let attempt = self.attempt();
            let identity = FIRST + attempt;
            client.execute(&import, &[&attempt, &identity]).await?;
            self.arena.counts.imported.fetch_add(1, Ordering::Relaxed);
            self.imported.push_back(identity);
            if self.imported.len() > REMEMBERED {
                self.imported.pop_front();
            }
            for _ in 0..8 {
                let again = self.imported[self.rng.random_range(0..self.imported.len())];
                client.execute(&claim, &[&self.attempt(), &again]).await?;
            }
        }
        Ok(())
    }

    fn attempt(&mut self) -> i64 {
        self.next_attempt += 1;
        self.next_attempt
    }
}
