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
    }
    let mut ours = open(&cluster, Side::Idem.database())?;
    let mut theirs = open(&cluster, Side::HandWritten.database())?;
    let (by_idem, by_hand) = (
        Form::Statement(Side::Idem),
        Form::Statement(Side::HandWritten),
    );
    create_loop(&mut ours, by_idem)?;
    create_loop(&mut ours, Form::Expression)?;
    create_loop(&mut theirs, by_hand)?;
    let known = [
        idem::sample(&mut ours, KNOWN)?,
        inbox::sample(&mut theirs, KNOWN)?,
    ];
    // Few claims, so that the filter of the current slice does not become too small.
    let claims = options.sized(25_000, 5_000);
    let mut new = Rounds::default();
    let mut duplicates = Rounds::default();
    let mut as_expression = Vec::new();
    for round in 0..options.rounds() {
        for side in Side::in_turn(round) {
            match side {
                Side::Idem => {
                    let mut forms = [
                        (by_idem, &mut new.ours),
                        (Form::Expression, &mut as_expression),
                    ];
                    forms.rotate_left(round % 2);
                    for (form, times) in forms {
                        times.push(time_of_new(&mut ours, form, claims)?);
                    }
                    duplicates
                        .ours
                        .push(time_of_duplicates(&mut ours, by_idem, &known[0])?);
                }
                Side::HandWritten => {
                    new.theirs.push(time_of_new(&mut theirs, by_hand, claims)?);
                    duplicates
                        .theirs
                        .push(time_of_duplicates(&mut theirs, by_hand, &known[1])?);
                }
            }
        }
    }
    let as_expression = Rounds {
        ours: as_expression,
        theirs: new.theirs.clone(),
    };
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
    table.note(
        "both sides: one statement with a prepared plan for each id; an insert cannot be an \
         expression",
    );
    table.rounds("new ids", &new, Target::AtMost(0.65));
    table.rounds(
        "new ids, the claim as an expression",
        &as_expression,
        Target::None,
    );
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

impl Form {
    /// Returns the name of the function with the loop.
    fn function(self) -> &'static str {
        match self {
            Form::Statement(_) => "claim_each",
            Form::Expression => "claim_each_as_expression",
        }
    }
}

/// Creates the function with the loop: it claims all ids, and returns "claimed ids;microseconds per
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
        "CREATE FUNCTION {}(ids text[]) RETURNS text LANGUAGE plpgsql AS $$
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
         END $$",
        form.function()
    ))?;
    Ok(())
}

/// Claims new ids. Returns the microseconds of one claim.
pub fn time_of_new(session: &mut Session, form: Form, claims: u64) -> Result<f64> {
    let ids = format!("ARRAY(SELECT gen_random_uuid()::text FROM generate_series(1, {claims}))");
    time_of(session, form, &ids, claims)
}

/// Claims ids that are claimed. Returns the microseconds of one duplicate.
fn time_of_duplicates(session: &mut Session, form: Form, known: &[String]) -> Result<f64> {
    time_of(session, form, &format!("'{{{}}}'", known.join(",")), 0)
}

fn time_of(session: &mut Session, form: Form, ids: &str, expected: u64) -> Result<f64> {
    let function = form.function();
    let result: String = session.value(&format!("BEGIN; SELECT {function}({ids}); COMMIT"))?;
    let (won, time) = result.split_once(';').context("no time")?;
    let won: u64 = won.parse()?;
    ensure!(
        won == expected,
        "{won} ids are claimed instead of {expected}"
    );
    Ok(time.parse()?)
}
