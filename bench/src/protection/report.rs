//! The rates of all contestants, their ratios, and the report.

use std::fmt;
use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::Result;
use deadpool_postgres::Pool;

use super::config::connections;
use super::handler::Event;
use super::{Config, Contestant, Step};
use crate::report::{Ratio, Rounds, median};

/// Messages per second of each contestant, round by round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates([Vec<f64>; 3]);

impl Rates {
    /// Adds the rate of the next round of a contestant.
    pub fn add(&mut self, contestant: Contestant, rate: f64) {
        self.0[contestant as usize].push(rate);
    }

    /// Returns the rates of a contestant, round by round.
    #[must_use]
    pub fn of(&self, contestant: Contestant) -> &[f64] {
        &self.0[contestant as usize]
    }

    /// Returns the median of the rates of a contestant, or NaN before its first round.
    #[must_use]
    pub fn median(&self, contestant: Contestant) -> f64 {
        median(self.of(contestant))
    }

    /// Returns the ratio of two contestants: the median of the ratios of all rounds. Rounds in
    /// which only one of the two was measured do not count.
    #[must_use]
    pub fn ratio(&self, contestant: Contestant, baseline: Contestant) -> Ratio {
        let rounds = Rounds {
            ours: self.of(contestant).to_vec(),
            theirs: self.of(baseline).to_vec(),
        };
        rounds.ratio()
    }
}

/// The settings of a measurement, which all contestants have in common.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The number of clients of each contestant.
    pub clients: usize,
    /// The number of rounds.
    pub rounds: usize,
    /// The time, in milliseconds, of each contestant in each round.
    pub round_ms: u64,
    /// The number of bytes of the payload of an outgoing message.
    pub payload_bytes: usize,
    /// The number of claims that both inboxes retained before the rounds.
    pub retained: u32,
    /// The time in which the inboxes were filled.
    pub filled: Duration,
    /// The number of processors that client and server share.
    pub processors: usize,
    /// The version of PostgreSQL and its settings of durability.
    pub server: String,
}

impl Settings {
    /// Reads the settings of the server on a connection of a contestant.
    pub(super) async fn read(
        pool: &Pool,
        config: &Config,
        event: &Event,
        filled: Duration,
    ) -> Result<Self> {
        let row = pool
            .get()
            .await?
            .query_one(
                "SELECT format('PostgreSQL %s, synchronous_commit=%s, fsync=%s, shared_buffers=%s',
                               split_part(current_setting('server_version'), ' ', 1),
                               current_setting('synchronous_commit'), current_setting('fsync'),
                               current_setting('shared_buffers'))",
                &[],
            )
            .await?;
        Ok(Self {
            clients: config.clients,
            rounds: config.rounds,
            round_ms: config.round_ms,
            payload_bytes: event.bytes(),
            retained: config.retained,
            filled,
            processors: available_parallelism().map_or(1, NonZero::get),
            server: row.try_get(0)?,
        })
    }
}

/// The results of a measurement.
#[derive(Clone, Debug)]
pub struct Report {
    /// The settings.
    pub settings: Settings,
    /// The rates of all rounds.
    pub rates: Rates,
    /// The mean time of a message in each step, in milliseconds, by contestant.
    pub steps_ms: [[f64; 3]; 3],
}

impl Report {
    /// Returns the mean time of one message of a client, in milliseconds, from the median rate.
    #[must_use]
    pub fn ms_per_message(&self, contestant: Contestant) -> f64 {
        1_000.0 * self.settings.clients as f64 / self.rates.median(contestant)
    }

    /// Returns one sentence about the longest step of a message with idem.
    #[must_use]
    pub fn longest_step(&self) -> String {
        let of =
            |contestant: Contestant, step: Step| self.steps_ms[contestant as usize][step as usize];
        let idem = |step: &Step| of(Contestant::Idem, *step);
        let [first, rest @ ..] = Step::ALL;
        let longest = rest.into_iter().fold(first, |longest, step| {
            if idem(&step) > idem(&longest) {
                step
            } else {
                longest
            }
        });
        format!(
            "Of the {:.2} ms of a message with idem, {:.2} ms pass in \"{}\", where the \
             transaction without protection needs {:.2} ms.",
            Step::ALL.iter().map(idem).sum::<f64>(),
            idem(&longest),
            longest.name(),
            of(Contestant::BusinessAlone, longest),
        )
    }

    fn line(&self, f: &mut fmt::Formatter<'_>, contestant: Contestant) -> fmt::Result {
        write!(
            f,
            "{contestant:<23}{:>12.0}{:>10.2}",
            self.rates.median(contestant),
            self.ms_per_message(contestant)
        )?;
        if contestant == Contestant::BusinessAlone {
            write!(f, "{:>12}{:>14}", "baseline", "")?;
        } else {
            let ratio = self.rates.ratio(contestant, Contestant::BusinessAlone);
            write!(f, "{:>12}{:>14}", ratio.to_string(), ratio.range())?;
        }
        writeln!(f, "{:>9}", contestant.round_trips())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<23}{:>12}{:>10}{:>12}{:>14}{:>9}",
            "", "messages/s", "ms each", "ratio", "of rounds", "waits"
        )?;
        writeln!(f, "{}", "-".repeat(80))?;
        for contestant in Contestant::ALL {
            self.line(f, contestant)?;
        }
        let ratio = self.rates.ratio(Contestant::Idem, Contestant::ByHand);
        writeln!(
            f,
            "{:<45}{:>12}{:>14}\n",
            "idem, with \"by hand\" as the baseline",
            ratio.to_string(),
            ratio.range()
        )?;
        let [claim, update, commit] = Step::ALL.map(Step::name);
        writeln!(
            f,
            "{:<23}{claim:>18}{update:>18}{commit:>21}",
            "ms of each step (mean)"
        )?;
        writeln!(f, "{}", "-".repeat(80))?;
        for (contestant, [claim, update, commit]) in Contestant::ALL.iter().zip(self.steps_ms) {
            writeln!(
                f,
                "{contestant:<23}{claim:>18.2}{update:>18.2}{commit:>21.2}"
            )?;
        }
        writeln!(f)?;
        self.settings.fmt(f)
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            clients,
            rounds,
            round_ms,
            payload_bytes,
            retained,
            filled,
            processors,
            server,
        } = self;
        let connections = connections(*clients);
        write!(
            f,
            "\
each message    new id; an UPDATE of one row; an outgoing message of {payload_bytes} bytes
                (\"business alone\" has neither the id nor the outgoing message)
by hand         INSERT INTO inbox .. ON CONFLICT DO NOTHING, UPDATE, INSERT INTO
                outbox, in one transaction, statement by statement
idem            Idem::process(): BEGIN and the claim are sent together, and so
                are the outgoing message and COMMIT
waits           how often a client waits for the server for each message
every side      {clients} clients, a pool of {connections} connections (idem keeps one for short
                statements), prepared statements, its own tables in one database
retained        {retained} claims in both inboxes before the rounds, written in
                {:.1} s with VACUUM and CHECKPOINT
rounds          {rounds} of {round_ms} ms for each side after a warm-up, in changing order;
                figures are medians, a ratio is taken within its round
server          {server}
                on {processors} processors, which clients and server share
checked         after the rounds: one update, one claim and one outgoing message
                for each message
not measured    publication, and the removal of old rows (by hand: DELETE and
                VACUUM; idem: TRUNCATE)
",
            filled.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a report of a machine that becomes ten times faster in the second of three rounds.
    fn report() -> Report {
        let mut rates = Rates::default();
        for speed in [100.0, 1_000.0, 200.0] {
            rates.add(Contestant::BusinessAlone, 10.0 * speed);
            rates.add(Contestant::ByHand, 4.0 * speed);
            rates.add(Contestant::Idem, 5.0 * speed);
        }
        Report {
            settings: Settings {
                clients: 8,
                rounds: 3,
                round_ms: 700,
                payload_bytes: 147,
                retained: 2_000_000,
                filled: Duration::from_secs(14),
                processors: 2,
                server: "PostgreSQL 15.20, synchronous_commit=on, fsync=on".to_owned(),
            },
            rates,
            steps_ms: [[0.5, 0.5, 3.0], [3.0, 1.0, 6.0], [1.5, 0.75, 5.75]],
        }
    }

    /// The sentence names the longest step of idem, with the same step of the baseline.
    #[test]
    fn longest_step_is_that_of_idem() {
        assert_eq!(
            report().longest_step(),
            "Of the 8.00 ms of a message with idem, 5.75 ms pass in \"outgoing, COMMIT\", where \
             the transaction without protection needs 3.00 ms."
        );
    }

    /// A rate is the median of the rounds, and a ratio is computed within each round.
    #[test]
    fn figures_are_medians_and_ratios_are_of_one_round() {
        let Report { rates, .. } = report();
        assert_eq!(rates.median(Contestant::BusinessAlone), 2_000.0);
        assert_eq!(rates.median(Contestant::ByHand), 800.0);
        let ratio = rates.ratio(Contestant::Idem, Contestant::BusinessAlone);
        assert_eq!((ratio.median, ratio.least, ratio.most), (0.5, 0.5, 0.5));
        assert_eq!(
            rates
                .ratio(Contestant::Idem, Contestant::ByHand)
                .to_string(),
            "1.25x"
        );
    }

    /// A round in which only one of two contestants was measured does not change their ratio.
    #[test]
    fn unfinished_round_does_not_change_a_ratio() {
        let Report { mut rates, .. } = report();
        let before = rates.ratio(Contestant::ByHand, Contestant::BusinessAlone);
        rates.add(Contestant::ByHand, 1.0);
        assert_eq!(
            rates.ratio(Contestant::ByHand, Contestant::BusinessAlone),
            before
        );
    }

    /// Eight clients that process 2,000 messages per second need 4 ms for each message.
    #[test]
    fn time_of_a_message_follows_from_rate_and_clients() {
        let report = report();
        assert_eq!(report.ms_per_message(Contestant::BusinessAlone), 4.0);
        assert_eq!(report.ms_per_message(Contestant::Idem), 8.0);
    }

    /// The report fits into 80 columns. It has the figures, the named baseline and the settings.
    #[test]
    fn report_has_figures_baselines_and_settings() {
        let text = report().to_string();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.iter().all(|line| line.len() <= 80), "{text}");
        let of = |name: &str| {
            let line = lines.iter().find(|line| line.starts_with(name));
            line.map(|line| line.split_whitespace().skip(name.split(' ').count()))
                .map(|words| words.collect::<Vec<_>>().join(" "))
        };
        assert_eq!(
            of("business alone").as_deref(),
            Some("2000 4.00 baseline 3"),
            "{text}"
        );
        assert_eq!(
            of("by hand").as_deref(),
            Some("800 10.00 0.40x 0.40..0.40 5"),
            "{text}"
        );
        assert_eq!(
            of("idem").as_deref(),
            Some("1000 8.00 0.50x 0.50..0.50 3"),
            "{text}"
        );
        for setting in [
            "1.25x",
            "147 bytes",
            "8 clients, a pool of 9 connections",
            "synchronous_commit=on",
            "3 of 700 ms",
            "2000000 claims in both inboxes",
        ] {
            assert!(text.contains(setting), "{setting} is missing:\n{text}");
        }
    }
}
