//! Measures a claim inside the server: a function claims many ids in a loop, so no round trip, no
//! parsing and no commit is part of a figure.

use anyhow::{Context, Result, ensure};
use idem_cluster::{Cluster, Install};

use super::options::Options;
use super::report::{Rounds, Table, Target};
use super::side::{DESTINATION, Side};
use super::wire::Session;
use super::{idem, inbox, server, throughput};

/// The ids that are known before the measurement, for the duplicates.
const KNOWN: u64 = 20_000;

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-in-server", &[])?;
    for side in Side::in_turn(0) {
        throughput::prepare(&cluster, side, options.retained())?;
        let form = Form::Statement(side);
        create_loop(&mut Session::connect(&cluster, side.database())?, form)?;
    }
    let mut ours = open(&cluster, Side::Idem.database())?;
    let mut theirs = open(&cluster, Side::HandWritten.database())?;
    let known = [
        idem::sample(&mut ours, KNOWN)?,
        inbox::sample(&mut theirs, KNOWN)?,
    ];
    let claims = options.sized(50_000, 5_000);
    let mut new = Rounds::default();
    let mut duplicates = Rounds::default();
    for round in 0..options.rounds() {
        for side in Side::in_turn(round) {
            match side {
                Side::Idem => {
                    new.ours.push(time_of_new(&mut ours, claims)?);
                    duplicates
                        .ours
                        .push(time_of_duplicates(&mut ours, &known[0])?);
                }
                Side::HandWritten => {
                    new.theirs.push(time_of_new(&mut theirs, claims)?);
                    duplicates
                        .theirs
                        .push(time_of_duplicates(&mut theirs, &known[1])?);
                }
            }
        }
    }
    let mut table = Table::new(
        "in-server: claims in a loop of PL/pgSQL: microseconds per id",
        ["idem", "hand-written"],
    );
    table.note(server::settings(&mut ours)?);
    table.note(format!(
        "{} identities retained at the start on both sides; text ids that spell random UUIDs; \
         hand-written: INSERT ... ON CONFLICT DO NOTHING, text key, index on the time",
        options.retained(),
    ));
    table.note("both sides: one statement with a prepared plan for each id");
    table.rounds("new ids", &new, Target::AtMost(0.65));
    table.rounds("duplicates", &duplicates, Target::None);
    let mut of_idem = Table::new(
        "    A duplicate against a claim of idem",
        ["duplicate", "claim"],
    );
    let of_idem_rounds = Rounds {
        ours: duplicates.ours,
        theirs: new.ours,
    };
    of_idem.rounds("microseconds per id", &of_idem_rounds, Target::AtMost(0.6));
    Ok(vec![table, of_idem])
}

/// Opens a session in which a commit does not wait for the disk.
fn open(cluster: &Cluster, database: &str) -> Result<Session> {
    let mut session = Session::connect(cluster, database)?;
    session.run("SET synchronous_commit = off")?;
    Ok(session)
}

/// How a loop claims an id.
#[derive(Clone, Copy)]
pub enum Form {
    /// With a statement, which a loop in PL/pgSQL plans once.
    Statement(Side),
    /// With an expression, which PL/pgSQL evaluates without a statement. Only idem has this form.
    Expression,
}

/// Creates the function `claim_each`: it claims all ids, and returns "claimed ids;microseconds per
/// id".
pub fn create_loop(session: &mut Session, form: Form) -> Result<()> {
    let claim = match form {
        Form::Expression => format!("won := won + idem_try_claim(id, '{DESTINATION}')::int;"),
        Form::Statement(Side::Idem) => format!(
            "SELECT idem_try_claim(id, '{DESTINATION}')::int INTO claimed;
             won := won + claimed;"
        ),
        Form::Statement(Side::HandWritten) => format!(
            "INSERT INTO inbox (message_id, destination) VALUES (id, '{DESTINATION}')
                 ON CONFLICT DO NOTHING;
             won := won + FOUND::int;"
        ),
    };
    session.run(&format!(
        "CREATE FUNCTION claim_each(ids text[]) RETURNS text LANGUAGE plpgsql AS $$
         DECLARE
             id text;
             won int := 0;
             claimed int;
             started timestamptz := clock_timestamp();
         BEGIN
             FOREACH id IN ARRAY ids LOOP
                 {claim}
             END LOOP;
             RETURN won || ';' || extract(epoch FROM clock_timestamp() - started)
                                  * 1000000 / cardinality(ids);
         END $$"
    ))?;
    Ok(())
}

/// Claims new ids. Returns the microseconds of one claim.
pub fn time_of_new(session: &mut Session, claims: u64) -> Result<f64> {
    let ids = format!("ARRAY(SELECT gen_random_uuid()::text FROM generate_series(1, {claims}))");
    time_of(session, &ids, claims)
}

/// Claims ids that are claimed. Returns the microseconds of one duplicate.
fn time_of_duplicates(session: &mut Session, known: &[String]) -> Result<f64> {
    time_of(session, &format!("'{{{}}}'", known.join(",")), 0)
}

fn time_of(session: &mut Session, ids: &str, expected: u64) -> Result<f64> {
    let result: String = session.value(&format!("BEGIN; SELECT claim_each({ids}); COMMIT"))?;
    let (won, time) = result.split_once(';').context("no time")?;
    let won: u64 = won.parse()?;
    ensure!(
        won == expected,
        "{won} ids are claimed instead of {expected}"
    );
    Ok(time.parse()?)
}
