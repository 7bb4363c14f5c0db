//! Measures a transaction that is sent as one pipeline, with a single Sync: BEGIN, claim, business
//! update, COMMIT. The same transaction with several claims shows what a further claim costs, and
//! the same with a round trip for each statement shows how much the pipeline saves.

use std::thread::available_parallelism;

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install};

use super::options::Options;
use super::pgbench::Script;
use super::report::{Rounds, Table, Target};
use super::side::{DESTINATION, Side};
use super::wire::Session;
use super::{idem, server, throughput};

const CLIENTS: usize = 8;
/// The number of claims in a statement with several.
const SEVERAL: usize = 4;
/// The database of the pipelines without a claim.
const WITHOUT: &str = "without";
/// The database of the transactions with a round trip for each statement.
const IN_STEPS: &str = "in_steps";

/// How a transaction is sent.
#[derive(Clone, Copy)]
enum Sent {
    /// As one pipeline, with SELECT 1 instead of a claim.
    WithoutClaim,
    /// As one pipeline, with one statement of this side for this number of claims.
    WithClaims(Side, usize),
    /// With the claim of idem, and a round trip for each statement.
    InSteps,
}

impl Sent {
    /// Returns all, in an order that alternates from round to round.
    fn in_turn(round: usize) -> [Self; 6] {
        let [one, two] = Side::in_turn(round);
        let mut all = [
            Self::WithoutClaim,
            Self::WithClaims(one, 1),
            Self::WithClaims(two, SEVERAL),
            Self::InSteps,
            Self::WithClaims(two, 1),
            Self::WithClaims(one, SEVERAL),
        ];
        all.rotate_left(round % 6);
        all
    }

    /// Returns the database in which the transaction runs.
    fn database(self) -> &'static str {
        match self {
            Self::WithoutClaim => WITHOUT,
            Self::WithClaims(side, _) => side.database(),
            Self::InSteps => IN_STEPS,
        }
    }

    /// Returns the statement with the claims.
    fn claim(self) -> String {
        let repeat = |claims: usize, part: String| vec![part; claims].join(", ");
        match self {
            Self::WithoutClaim => "SELECT 1".to_owned(),
            Self::InSteps => Self::WithClaims(Side::Idem, 1).claim(),
            Self::WithClaims(Side::Idem, claims) => {
                let claim = format!("idem_try_claim(gen_random_uuid()::text, '{DESTINATION}')");
                format!("SELECT {}", repeat(claims, claim))
            }
            Self::WithClaims(Side::HandWritten, claims) => {
                let row = format!("(gen_random_uuid()::text, '{DESTINATION}')");
                let rows = repeat(claims, row);
                format!(
                    "INSERT INTO inbox (message_id, destination) VALUES {rows} \
                     ON CONFLICT DO NOTHING"
                )
            }
        }
    }

    /// Returns the script of pgbench.
    fn script(self) -> String {
        let (start, end) = match self {
            Self::InSteps => ("", ""),
            _ => ("\\startpipeline\n", "\\endpipeline\n"),
        };
        format!(
            "\\set account random(0, {})\n{start}BEGIN;\n{};\n{};\nCOMMIT;\n{end}",
            server::ACCOUNTS - 1,
            self.claim(),
            server::BUSINESS.replace("$1", ":account"),
        )
    }
}

/// Transactions per second, round by round.
#[derive(Default)]
struct Rates {
    without: Vec<f64>,
    /// With one claim, and with several, of idem and by hand.
    claims: [[Vec<f64>; 2]; 2],
    in_steps: Vec<f64>,
}

impl Rates {
    fn of(&mut self, sent: Sent) -> &mut Vec<f64> {
        match sent {
            Sent::WithoutClaim => &mut self.without,
            Sent::WithClaims(side, claims) => {
                &mut self.claims[usize::from(claims > 1)][usize::from(side != Side::Idem)]
            }
            Sent::InSteps => &mut self.in_steps,
        }
    }

    /// Returns the microseconds of the processors for each further claim of a statement.
    fn further(&self, side: usize, processors: usize) -> Vec<f64> {
        let [one, several] = &self.claims;
        let microseconds = |rate: &f64| processors as f64 * 1e6 / rate;
        let rounds = one[side].iter().zip(&several[side]);
        rounds
            .map(|(one, several)| {
                (microseconds(several) - microseconds(one)) / (SEVERAL - 1) as f64
            })
            .collect()
    }
}

pub fn run(install: &Install, options: &Options) -> Result<Vec<Table>> {
    let cluster = server::start(install, "bench-pipelined", &[])?;
    for side in Side::in_turn(0) {
        throughput::prepare(&cluster, side, options.retained())?;
    }
    cluster.run("createdb", [WITHOUT], &[])?;
    server::create_accounts(&mut Session::connect(&cluster, WITHOUT)?)?;
    cluster.run("createdb", [IN_STEPS], &[])?;
    let mut session = Session::connect(&cluster, IN_STEPS)?;
    session.run("CREATE EXTENSION idem")?;
    server::create_accounts(&mut session)?;
    idem::create(&mut session)?;
    idem::top_up(&mut session, idem::Fill::mid_life(options.retained()))?;
    let mut table = Table::new(
        "pipelined: BEGIN, claim, business update, COMMIT with one Sync: transactions per second",
        ["with the claim of idem", "compared with"],
    );
    table.note(server::settings(&mut Session::connect(
        &cluster,
        Side::Idem.database(),
    )?)?);
    table.note(format!(
        "pgbench, prepared statements, {CLIENTS} clients; {} identities retained at the start; \
         every message is new; {} rounds of {:.1} s for each side, interleaved",
        options.retained(),
        options.rounds(),
        options.round().as_secs_f64(),
    ));
    table.note("round trips: over a Unix socket; a network adds its latency to each of them");
    let mut more = Table::new(
        "    A further claim in the same statement: microseconds of all processors",
        ["idem", "hand-written"],
    );
    let processors = available_parallelism()?.get();
    more.note(format!(
        "{processors} processors divided by the transactions with {SEVERAL} claims and with one"
    ));
    for synchronous_commit in [false, true] {
        let mut rates = Rates::default();
        for round in 0..options.rounds() {
            for sent in Sent::in_turn(round) {
                let rate = rate(&cluster, sent, synchronous_commit, options)?;
                rates.of(sent).push(rate);
            }
        }
        let commit = if synchronous_commit { "on" } else { "off" };
        let [ours, by_hand] = &rates.claims[0];
        for (what, ours, theirs, target) in [
            ("SELECT 1", ours, &rates.without, Target::AtLeast(0.8)),
            ("a hand-written inbox", ours, by_hand, Target::AtLeast(1.2)),
            ("round trips", ours, &rates.in_steps, Target::None),
        ] {
            let what = format!("synchronous_commit={commit}, against {what}");
            let rounds = Rounds {
                ours: ours.clone(),
                theirs: theirs.clone(),
            };
            table.rounds(&what, &rounds, target);
        }
        if !synchronous_commit {
            let rounds = Rounds {
                ours: rates.further(0, processors),
                theirs: rates.further(1, processors),
            };
            more.rounds("synchronous_commit=off", &rounds, Target::None);
        }
    }
    Ok(vec![table, more])
}

/// Returns the transactions per second of one round.
fn rate(cluster: &Cluster, sent: Sent, synchronous_commit: bool, options: &Options) -> Result<f64> {
    let mut session = Session::connect(cluster, sent.database())?;
    let before: u64 = session.value(server::UPDATES)?;
    let output = Script {
        cluster,
        database: sent.database(),
        text: &sent.script(),
        clients: CLIENTS,
        time: options.round(),
        synchronous_commit,
    }
    .run()?;
    let updates = session.value::<u64>(server::UPDATES)? - before;
    let transactions = output.transactions()?;
    ensure!(
        updates == transactions,
        "{updates} business updates in {transactions} transactions"
    );
    output.rate()
}
