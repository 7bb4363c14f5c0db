//! Measures a claim inside the server: a function claims many ids in a loop, so no round trip, no
//! parsing and no commit is part of a figure.

use anyhow::{Context, Result, ensure};
use idem_cluster::{Cluster, Install};

use super::options::Options;
use super::report::{Rounds, Table, Target};
use super::side::{DESTINATION, Order, Side};
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
    for form in [by_idem, Form::Expression, Form::IsClaimed] {
        create_loop(&mut ours, form)?;
    }
    create_loop(&mut theirs, by_hand)?;
    let known = [
        Known {
            replayed: idem::sample(&mut ours, KNOWN, Order::OfTime)?,
            shuffled: idem::sample(&mut ours, KNOWN, Order::Random)?,
            latest: new_ids(&mut ours, KNOWN)?,
        },
        Known {
            replayed: inbox::sample(&mut theirs, KNOWN, Order::OfTime)?,
            shuffled: inbox::sample(&mut theirs, KNOWN, Order::Random)?,
            latest: new_ids(&mut theirs, KNOWN)?,
        },
    ];
    time_of_ids(&mut ours, by_idem, &known[0].latest, KNOWN)?;
    time_of_ids(&mut theirs, by_hand, &known[1].latest, KNOWN)?;
    // Few claims, so that the present segment does not become too large.
    let claims = options.sized(25_000, 5_000);
    let mut of = Times::default();
    for round in 0..options.rounds() {
        for side in Side::in_turn(round) {
            if side == Side::HandWritten {
                of.by_hand.push(time_of_new(&mut theirs, by_hand, claims)?);
                of.known[1].measure(&known[1], &mut theirs, by_hand)?;
                continue;
            }
            let mut forms = [
                (by_idem, &mut of.claim),
                (Form::Expression, &mut of.as_expression),
                (Form::IsClaimed, &mut of.is_claimed),
            ];
            forms.rotate_left(round % 3);
            for (form, times) in forms {
                times.push(time_of_new(&mut ours, form, claims)?);
            }
            of.known[0].measure(&known[0], &mut ours, by_idem)?;
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
    table.note(
        "both sides: one statement with a prepared plan for each id; an insert cannot be an \
         expression",
    );
    let against = |ours: &[f64], theirs: &[f64]| Rounds {
        ours: ours.to_vec(),
        theirs: theirs.to_vec(),
    };
    let new = against(&of.claim, &of.by_hand);
    table.rounds("new ids", &new, Target::AtMost(0.45));
    let as_expression = against(&of.as_expression, &of.by_hand);
    table.rounds(
        "new ids, the claim as an expression",
        &as_expression,
        Target::None,
    );
    let [ours_of, theirs_of] = &of.known;
    for (what, ours, theirs, target) in [
        (
            "duplicates of the latest ids",
            &ours_of.latest,
            &theirs_of.latest,
            Target::AtMost(0.6),
        ),
        (
            "duplicates in the order of time",
            &ours_of.replayed,
            &theirs_of.replayed,
            Target::AtMost(2.0),
        ),
        (
            "duplicates in random order",
            &ours_of.shuffled,
            &theirs_of.shuffled,
            Target::None,
        ),
    ] {
        table.rounds(what, &against(ours, theirs), target);
    }
    let mut of_idem = Table::new(
        "    idem_is_claimed of a new id, against a claim of idem",
        ["idem_is_claimed", "claim"],
    );
    let is_claimed = against(&of.is_claimed, &of.claim);
    of_idem.rounds("microseconds per id", &is_claimed, Target::AtMost(0.5));
    Ok(vec![table, of_idem])
}

/// Known ids.
struct Known {
    replayed: Vec<String>,
    shuffled: Vec<String>,
    /// In idem these are in the present segment.
    latest: Vec<String>,
}

/// Microseconds of each round.
#[derive(Default)]
struct Times {
    claim: Vec<f64>,
    as_expression: Vec<f64>,
    is_claimed: Vec<f64>,
    by_hand: Vec<f64>,
    /// Of idem and by hand.
    known: [KnownTimes; 2],
}

#[derive(Default)]
struct KnownTimes {
    replayed: Vec<f64>,
    shuffled: Vec<f64>,
    latest: Vec<f64>,
}

impl KnownTimes {
    fn measure(&mut self, known: &Known, session: &mut Session, form: Form) -> Result<()> {
        for (ids, times) in [
            (&known.latest, &mut self.latest),
            (&known.replayed, &mut self.replayed),
            (&known.shuffled, &mut self.shuffled),
        ] {
            times.push(time_of_ids(session, form, ids, 0)?);
        }
        Ok(())
    }
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
    /// Only asks with a statement whether the id is claimed.
    IsClaimed,
}

impl Form {
    /// Returns the name of the function with the loop.
    fn function(self) -> &'static str {
        match self {
            Form::Statement(_) => "claim_each",
            Form::Expression => "claim_each_as_expression",
            Form::IsClaimed => "is_claimed_each",
        }
    }
}

/// Creates the function with the loop: it claims all ids, and returns "claimed ids;microseconds per
/// id".
pub fn create_loop(session: &mut Session, form: Form) -> Result<()> {
    let claim = match form {
        Form::Expression => format!("won := won + idem_try_claim(id, '{DESTINATION}')::int;"),
        Form::IsClaimed => format!(
            "SELECT idem_is_claimed(id, '{DESTINATION}')::int INTO claimed;
             won := won + claimed;"
        ),
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

/// Runs the loop with new ids. Returns the microseconds of one id.
pub fn time_of_new(session: &mut Session, form: Form, claims: u64) -> Result<f64> {
    let ids = format!("ARRAY(SELECT gen_random_uuid()::text FROM generate_series(1, {claims}))");
    let expected = match form {
        Form::IsClaimed => 0,
        Form::Statement(_) | Form::Expression => claims,
    };
    time_of(session, form, &ids, expected)
}

/// Returns ids that are not claimed.
fn new_ids(session: &mut Session, ids: u64) -> Result<Vec<String>> {
    session.column(&format!(
        "SELECT gen_random_uuid()::text FROM generate_series(1, {ids})"
    ))
}

/// Runs the loop with these ids, and checks how often its result is true. Returns the microseconds
/// of one id.
fn time_of_ids(session: &mut Session, form: Form, ids: &[String], expected: u64) -> Result<f64> {
    time_of(session, form, &format!("'{{{}}}'", ids.join(",")), expected)
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
