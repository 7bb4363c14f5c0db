//! The processes of a run: started, killed, started anew, and stopped in the end.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rand::{Rng, seq::SliceRandom};
use tokio::process::{Child, ChildStdin, Command};

use super::{LiveConfig, Role};

/// How many processes of a role there are.
pub type Strength = (Role, usize);

/// How many processes a live range has of each role.
pub const STRENGTH: [Strength; 5] = [
    (Role::Producer, 1),
    (Role::Targets, 2),
    (Role::Relay, 2),
    (Role::Board, 2),
    (Role::Observer, 1),
];

/// How long a process may take to finish what it has in hand when it is told to stop.
const LAST_WORK: Duration = Duration::from_secs(60);

/// A process that ends by itself is started anew, as any supervisor would; one that does so all the
/// time is broken.
const MOST_ENDS: u32 = 60;

/// Everybody who works.
pub struct Crew {
    program: PathBuf,
    dir: PathBuf,
    arguments: Vec<String>,
    strength: &'static [Strength],
    members: Vec<Member>,
    /// Who is killed next, from the end: everybody once before anybody again.
    lots: Vec<(Role, usize)>,
    /// Its processes are not killed.
    spared: Option<Role>,
    tally: Tally,
}

/// What has happened to the crew.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// How often a process of this role was killed.
    pub kills: BTreeMap<Role, u32>,
    /// How often a process ended by itself before its time.
    pub ends: u32,
}

struct Member {
    role: Role,
    number: usize,
    process: Process,
}

/// A process, with the end of the pipe that it lives by. Its handle would close that when it is
/// waited for.
struct Process {
    child: Child,
    _lifeline: Option<ChildStdin>,
}

impl Crew {
    /// Nobody yet. `dir` is for their notes and logs, `url` of the broker, `database` a connection
    /// string.
    pub fn new(program: &Path, dir: &Path, config: &LiveConfig, url: &str, database: &str) -> Self {
        let mut arguments = vec![
            format!("--broker={}", config.broker.argument()),
            format!("--broker-url={url}"),
            format!("--database={database}"),
            format!("--dir={}", dir.display()),
            format!("--per-second={}", config.per_second),
        ];
        arguments.extend(config.field.arguments());
        if config.unprotected {
            arguments.push("--unprotected".to_owned());
        }
        Self::with(program, dir, arguments, &STRENGTH)
    }

    /// The same with these arguments for each process, and as many processes of each role.
    pub fn with(
        program: &Path,
        dir: &Path,
        arguments: Vec<String>,
        strength: &'static [Strength],
    ) -> Self {
        Self {
            program: program.to_owned(),
            dir: dir.to_owned(),
            arguments,
            strength,
            members: Vec::new(),
            lots: Vec::new(),
            spared: None,
            tally: Tally::default(),
        }
    }

    /// No process of this role is killed.
    pub fn spare(&mut self, role: Role) {
        self.spared = Some(role);
    }

    /// The roles whose processes are killed.
    pub fn killed_roles(&self) -> impl Iterator<Item = Role> + use<> {
        let (strength, spared) = (self.strength, self.spared);
        strength
            .iter()
            .map(|(role, _)| *role)
            .filter(move |role| Some(*role) != spared)
    }

    /// Starts everybody.
    pub fn start_all(&mut self) -> Result<()> {
        for (role, _) in self.strength {
            self.start(*role)?;
        }
        Ok(())
    }

    /// Starts all processes of a role.
    pub fn start(&mut self, role: Role) -> Result<()> {
        let strength = self
            .strength
            .iter()
            .find(|(of, _)| *of == role)
            .map_or(0, |(_, strength)| *strength);
        for number in 0..strength {
            let process = self.spawn(role, number)?;
            self.members.push(Member {
                role,
                number,
                process,
            });
        }
        Ok(())
    }

    fn spawn(&self, role: Role, number: usize) -> Result<Process> {
        let log = self.log(role, number);
        let log = File::options().create(true).append(true).open(&log)?;
        let mut child = Command::new(&self.program)
            .arg(role.argument())
            .args(&self.arguments)
            // What they say at their end shall be read in a few lines.
            .env_remove("RUST_BACKTRACE")
            // It ends when this pipe does, so that nobody outlives whoever started it.
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        Ok(Process {
            _lifeline: child.stdin.take(),
            child,
        })
    }

    fn log(&self, role: Role, number: usize) -> PathBuf {
        self.dir.join(format!("{}-{number}.log", role.argument()))
    }

    /// Starts those anew who have ended by themselves. Answers whether the producer is done.
    pub fn tend(&mut self) -> Result<bool> {
        for place in 0..self.members.len() {
            let Member {
                role,
                number,
                process,
            } = &mut self.members[place];
            let (role, number) = (*role, *number);
            let Some(status) = process.child.try_wait()? else {
                continue;
            };
            if role == Role::Producer && status.success() {
                self.members.swap_remove(place);
                return self.tend();
            }
            self.tally.ends += 1;
            ensure!(
                self.tally.ends <= MOST_ENDS,
                "{MOST_ENDS} times somebody ended before their time; the last ({status}) said\n{}",
                self.last_words(role, number)
            );
            self.members[place].process = self.spawn(role, number)?;
        }
        Ok(!self
            .members
            .iter()
            .any(|member| member.role == Role::Producer))
    }

    /// Kills somebody with SIGKILL and starts them anew.
    pub async fn strike(&mut self, dice: &mut impl Rng) -> Result<()> {
        if self.lots.is_empty() {
            let spared = self.spared;
            let members = self
                .members
                .iter()
                .filter(|member| Some(member.role) != spared);
            self.lots = members.map(|member| (member.role, member.number)).collect();
            self.lots.shuffle(dice);
        }
        let Some(lot) = self.lots.pop() else {
            return Ok(());
        };
        let Some(place) = self
            .members
            .iter()
            .position(|member| (member.role, member.number) == lot)
        else {
            return Ok(());
        };
        // Waits for it too. One that has just ended by itself is not killed, and is seen by whoever
        // tends the crew.
        let child = &mut self.members[place].process.child;
        if child.try_wait()?.is_none() {
            child.kill().await?;
            let (role, number) = lot;
            self.members[place].process = self.spawn(role, number)?;
            *self.tally.kills.entry(role).or_default() += 1;
        }
        Ok(())
    }

    /// Tells all processes of a role to stop; returns when they have finished what they had in
    /// hand.
    pub async fn stop(&mut self, role: Role) -> Result<()> {
        let (leaving, staying) = std::mem::take(&mut self.members)
            .into_iter()
            .partition(|member| member.role == role);
        self.members = staying;
        let mut leaving: Vec<Member> = leaving;
        for member in &leaving {
            if let Some(pid) = member.process.child.id() {
                kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM)?;
            }
        }
        for Member {
            number, process, ..
        } in &mut leaving
        {
            let status: ExitStatus =
                match tokio::time::timeout(LAST_WORK, process.child.wait()).await {
                    Ok(status) => status?,
                    Err(_) => bail!(
                        "{role} {number} does not stop within {LAST_WORK:?}; it said\n{}",
                        self.last_words(role, *number)
                    ),
                };
            ensure!(
                status.success(),
                "{role} {number} did not end well ({status}); it said\n{}",
                self.last_words(role, *number)
            );
        }
        Ok(())
    }

    /// What has happened so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    fn last_words(&self, role: Role, number: usize) -> String {
        let log = self.log(role, number);
        let text = fs::read_to_string(&log)
            .unwrap_or_else(|error| format!("({}: {error})", log.display()));
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Tally {
    /// How often anybody was killed.
    #[must_use]
    pub fn all_kills(&self) -> u32 {
        self.kills.values().sum()
    }

    /// How often somebody of this role was killed.
    #[must_use]
    pub fn kills_of(&self, role: Role) -> u32 {
        self.kills.get(&role).copied().unwrap_or_default()
    }
}
