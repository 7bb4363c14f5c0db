//! Starts, kills and restarts the processes of a run, and stops them at the end.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rand::{Rng, seq::SliceRandom};
use tokio::process::{Child, ChildStdin, Command};

use super::post::{Post, Role};

/// A role and its number of processes.
pub type Strength = (Role, usize);

/// The number of processes of each role in a live range.
pub const STRENGTH: [Strength; 5] = [
    (Role::Producer, 1),
    (Role::Targets, 2),
    (Role::Relay, 2),
    (Role::Board, 2),
    (Role::Observer, 1),
];

/// The longest time that a process may take after SIGTERM to finish its messages in progress.
const LAST_WORK: Duration = Duration::from_secs(60);

/// The number of processes that may end by themselves in a run. Up to this limit they are
/// restarted, as a supervisor would do. A higher number means that a program is broken.
const MOST_ENDS: u32 = 60;

/// All processes of a run.
pub struct Processes {
    program: PathBuf,
    dir: PathBuf,
    arguments: Vec<String>,
    strength: &'static [Strength],
    members: Vec<Member>,
    /// The processes to kill next, beginning at the end of the list. Every process is killed once
    /// before a process is killed a second time.
    next_kills: Vec<(Role, usize)>,
    /// The role that is exempt from kills.
    spared: Option<Role>,
    tally: Tally,
}

/// The counts of kills and of unexpected ends.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The number of kills of each role.
    pub kills: BTreeMap<Role, u32>,
    /// The number of processes that ended by themselves before they were stopped.
    pub ends: u32,
}

struct Member {
    role: Role,
    number: usize,
    child: Child,
    /// The write end of the pipe to the standard input of the process, which ends when the pipe is
    /// closed. It is not in the child handle, because a wait for the child would close the pipe.
    _lifeline: Option<ChildStdin>,
}

impl Processes {
    /// Creates processes of `program` (a binary that runs [`work`](super::work)) with these
    /// arguments, without starting them.
    pub fn new(program: &Path, post: &Post, strength: &'static [Strength]) -> Self {
        Self {
            program: program.to_owned(),
            dir: post.dir.clone(),
            arguments: post.arguments(),
            strength,
            members: Vec::new(),
            next_kills: Vec::new(),
            spared: None,
            tally: Tally::default(),
        }
    }

    /// Exempts the processes of this role from kills.
    pub fn spare(&mut self, role: Role) {
        self.spared = Some(role);
    }

    /// Returns the roles with processes that can be killed.
    pub fn killed_roles(&self) -> impl Iterator<Item = Role> + use<> {
        let (strength, spared) = (self.strength, self.spared);
        strength
            .iter()
            .map(|(role, _)| *role)
            .filter(move |role| Some(*role) != spared)
    }

    /// Starts all processes.
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
            let member = self.spawn(role, number)?;
            self.members.push(member);
        }
        Ok(())
    }

    fn spawn(&self, role: Role, number: usize) -> Result<Member> {
        let log = self.log(role, number);
        let log = File::options().create(true).append(true).open(&log)?;
        let mut child = Command::new(&self.program)
            .arg(role.to_string())
            .args(&self.arguments)
            // Errors quote only the last lines of the log. With a backtrace, these lines would not
            // contain the error message.
            .env_remove("RUST_BACKTRACE")
            // The child ends when this pipe is closed, so that the child does not outlive this
            // process.
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        Ok(Member {
            role,
            number,
            _lifeline: child.stdin.take(),
            child,
        })
    }

    fn log(&self, role: Role, number: usize) -> PathBuf {
        self.dir.join(format!("{role}-{number}.log"))
    }

    /// Restarts processes that have ended by themselves. Returns whether the producer has finished.
    ///
    /// Returns an error when more than `MOST_ENDS` processes have ended by themselves.
    pub fn tend(&mut self) -> Result<bool> {
        for place in 0..self.members.len() {
            let member = &mut self.members[place];
            let (role, number) = (member.role, member.number);
            let Some(status) = member.child.try_wait()? else {
                continue;
            };
            if role == Role::Producer && status.success() {
                self.members.swap_remove(place);
                return self.tend();
            }
            self.tally.ends += 1;
            ensure!(
                self.tally.ends <= MOST_ENDS,
                "more than {MOST_ENDS} processes ended by themselves; \
                 the last one is {role} {number} ({status}), and its log ends with\n{}",
                self.log_tail(role, number)
            );
            self.members[place] = self.spawn(role, number)?;
        }
        Ok(!self
            .members
            .iter()
            .any(|member| member.role == Role::Producer))
    }

    /// Kills one process with SIGKILL and restarts it.
    pub async fn strike(&mut self, dice: &mut impl Rng) -> Result<()> {
        if self.next_kills.is_empty() {
            let spared = self.spared;
            let members = self
                .members
                .iter()
                .filter(|member| Some(member.role) != spared);
            self.next_kills = members.map(|member| (member.role, member.number)).collect();
            self.next_kills.shuffle(dice);
        }
        let Some(victim) = self.next_kills.pop() else {
            return Ok(());
        };
        let Some(place) = self
            .members
            .iter()
            .position(|member| (member.role, member.number) == victim)
        else {
            return Ok(());
        };
        // `kill` also waits for the end. A process that has just ended by itself is not killed:
        // `tend` counts and restarts it.
        let child = &mut self.members[place].child;
        if child.try_wait()?.is_none() {
            child.kill().await?;
            let (role, number) = victim;
            self.members[place] = self.spawn(role, number)?;
            *self.tally.kills.entry(role).or_default() += 1;
        }
        Ok(())
    }

    /// Stops all processes of a role with SIGTERM. Returns when they have finished their messages
    /// in progress and have ended.
    ///
    /// Returns an error when a process does not end within 60 seconds, or fails.
    pub async fn stop(&mut self, role: Role) -> Result<()> {
        let (leaving, staying) = std::mem::take(&mut self.members)
            .into_iter()
            .partition(|member| member.role == role);
        self.members = staying;
        let mut leaving: Vec<Member> = leaving;
        for member in &leaving {
            if let Some(pid) = member.child.id() {
                kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM)?;
            }
        }
        for Member { number, child, .. } in &mut leaving {
            let Ok(status) = tokio::time::timeout(LAST_WORK, child.wait()).await else {
                bail!(
                    "{role} {number} does not stop within {LAST_WORK:?}; its log ends with\n{}",
                    self.log_tail(role, *number)
                );
            };
            let status = status?;
            ensure!(
                status.success(),
                "{role} {number} failed ({status}); its log ends with\n{}",
                self.log_tail(role, *number)
            );
        }
        Ok(())
    }

    /// Returns the numbers of kills and of unexpected ends so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns the last 20 lines of the log of a process.
    fn log_tail(&self, role: Role, number: usize) -> String {
        let log = self.log(role, number);
        let text = fs::read_to_string(&log)
            .unwrap_or_else(|error| format!("({}: {error})", log.display()));
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Tally {
    /// Returns the number of kills of all roles.
    #[must_use]
    pub fn all_kills(&self) -> u32 {
        self.kills.values().sum()
    }

    /// Returns the number of kills of this role.
    #[must_use]
    pub fn kills_of(&self, role: Role) -> u32 {
        self.kills.get(&role).copied().unwrap_or_default()
    }
}
