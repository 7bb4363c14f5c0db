//! A model of the claims of one message, the rotations of its ring, the filters of the slices, and
//! rows that another command inserts. A model checker explores every order of the steps.
//!
//! Each action names the function that it models. A [`Rule`] that is left out must give a
//! counterexample: see `tests/`.

mod claimer;
mod filter;
mod ring;

pub use claimer::{Claimer, Step};
pub use filter::{Filter, Status};
pub use ring::{Phase, Place, Ring, SEGMENTS, SLICES};

use stateright::{Expectation, Model, Property};

/// A rule of the protocol that a broken variant leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// While the ring opens a segment or a slice, claims are written to the present one and to the
    /// new one (`idem.rotate`: advancing, opening).
    Opening,
    /// A segment advances, or the slices rotate, only when no transaction writes to the present one
    /// only (`idem.fence`).
    FirstFence,
    /// The fence of each step has another name (`idem.published_step`).
    FenceName,
    /// The ring rotates when its period has passed, and not when its segments are used up
    /// (`idem.is_due`).
    Period,
    /// A look-up reads every segment of a slice (`Lookup::in_segments`).
    WholeSlice,
    /// After a conflict a claimer looks only into the segment of the conflict
    /// (`Lookup::in_segment`).
    Conflict,
    /// A slice is emptied only when no transaction reads it (`idem.fence`).
    SecondFence,
    /// A row that another command inserts invalidates the filter (`idem.invalidate_filter`).
    Invalidation,
    /// A filter is completed when the transactions have ended that were writing to its slice
    /// (`filters::build::has_ended`).
    Lockers,
    /// A claim is added to the filter before it is inserted (`ClaimWriter::insert`).
    Add,
    /// A filter is not used before it is complete (`Arena::may_have`).
    Completeness,
    /// A filter is used only for the rows for which it was built (`Tag`).
    Tag,
    /// Only the first claimer in a complete filter uses an ordinary insert (`Arena::add`).
    First,
}

/// A row of the message in a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// The claimer, or `None` for a row that was copied.
    pub by: Option<usize>,
    pub is_committed: bool,
    /// How often the ring had rotated when the row was committed, or was inserted.
    pub rotations: u8,
    /// The number of periods that had passed.
    pub periods: u8,
}

impl Row {
    /// A row that is inserted now.
    fn new(by: Option<usize>, ring: &Ring) -> Self {
        Row {
            by,
            is_committed: false,
            rotations: ring.rotations,
            periods: ring.periods(),
        }
    }
}

/// A transaction that copies a row of the message into a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Copier {
    Idle,
    Locked,
    Checked,
    Inserted,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub ring: Ring,
    pub rows: [[Option<Row>; SEGMENTS]; SLICES],
    /// The fence that has passed last, if its name is used again.
    pub passed: Option<(Phase, u8)>,
    /// The slice with a filter, into which rows are copied. Filters of different slices do not
    /// depend on each other, so the model has one at a time.
    pub filtered: usize,
    pub filter: Filter,
    pub claimers: Vec<Claimer>,
    pub copier: Copier,
    pub crashes: u8,
    /// Set when two claims of the message are valid at the same time.
    pub is_doubled: bool,
    /// Set when a claim is removed before its retention has passed.
    pub is_forgotten_early: bool,
    /// Set when a claim is removed with its slice.
    pub is_removed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `ring::enter`
    Enter(usize),
    /// `Slices::open`: locks the slices to which the claim is written.
    Open(usize),
    /// One step of `ClaimWriter::decide`.
    Claim(usize),
    Commit(usize),
    RollBack(usize),
    /// `idem.rotate`: the next step of an advance.
    Advance,
    /// `idem.rotate`: the next step of a rotation.
    Rotate,
    /// `filters::build`: prepare, list the lockers, scan, complete.
    Prepare,
    List,
    Scan,
    Complete,
    /// COPY into the slice: lock, CHECK, insert, commit.
    Copy,
    Crash,
}

/// The model. `without` is the rule that this variant leaves out.
#[derive(Clone, Debug)]
pub struct Claims {
    pub claimers: usize,
    /// The largest number of advances, in all slices.
    pub advances: u8,
    pub rotations: u8,
    pub copies: bool,
    pub crashes: u8,
    pub without: Option<Rule>,
}

impl Rule {
    pub const ALL: [Rule; 13] = [
        Rule::Opening,
        Rule::FirstFence,
        Rule::SecondFence,
        Rule::FenceName,
        Rule::Period,
        Rule::WholeSlice,
        Rule::Conflict,
        Rule::Invalidation,
        Rule::Lockers,
        Rule::Add,
        Rule::Completeness,
        Rule::Tag,
        Rule::First,
    ];
}

impl Claims {
    /// Two claimers, and all rules. Claims are removed from the third rotation on.
    pub const WHOLE: Claims = Claims {
        claimers: 2,
        advances: 0,
        rotations: 3,
        copies: true,
        crashes: 0,
        without: None,
    };

    /// The smallest model in which leaving this rule out breaks an invariant.
    pub fn without(rule: Rule) -> Claims {
        let advances = match rule {
            Rule::FenceName => 2,
            Rule::WholeSlice | Rule::Conflict => 1,
            _ => 0,
        };
        Claims {
            advances,
            rotations: match rule {
                // A slice with an old filter is sealed again after more rotations.
                Rule::Tag => 5,
                _ if advances > 0 => 0,
                _ => 3,
            },
            copies: matches!(rule, Rule::Invalidation | Rule::Lockers | Rule::First),
            without: Some(rule),
            ..Claims::WHOLE
        }
    }

    /// Whether a property must hold in each state.
    pub fn is_invariant(name: &str) -> bool {
        [
            CLAIMED_ONCE,
            ONE_SEGMENT,
            ONE_FIRST,
            KEPT,
            REMOVED,
            SAME_FACTS,
        ]
        .contains(&name)
    }

    pub fn keeps(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }
}

/// I1.
pub const CLAIMED_ONCE: &str = "a message is claimed once";
/// I1: the unique index of this segment decides between the claimers.
pub const ONE_SEGMENT: &str = "each two open claimers write a common segment";
/// I1: two claimers that delete their rows would wait for each other.
pub const ONE_FIRST: &str = "at most one claimer of a slice uses an ordinary insert";
/// I6.
pub const KEPT: &str = "a claim is kept for the retention";
/// I7.
pub const REMOVED: &str = "a slice is emptied before it takes claims again";
/// I8, I3.
pub const SAME_FACTS: &str = "a duplicate writes nothing and finds the same claim until it ends";

impl State {
    /// Whether each row is in a slice in which a claim is looked for, or which is being emptied.
    fn keeps_no_old_row(&self) -> bool {
        let ring = &self.ring;
        let oldest = ring.rotations.saturating_sub(SLICES as u8 - 1);
        let is_old = |row: &Row| row.by.is_some() && row.is_committed && row.rotations < oldest;
        let mut rows = self.rows.as_flattened().iter().flatten();
        matches!(ring.phase, Phase::Opening | Phase::Emptying) || !rows.any(is_old)
    }

    /// Whether a claimer that has looked into all slices did not read the one with the filter.
    fn has_excluded(&self) -> bool {
        let model = Claims::WHOLE;
        self.claimers.iter().any(|claimer| {
            matches!(claimer, Claimer::Open(open) if matches!(open.step, Step::Add(_))
                && open.ring.probed().contains(&self.filtered)
                && self.filter.excludes(&model, open.ring.opened[self.filtered]))
        })
    }

    fn claimers_share_segments(&self) -> bool {
        let rings: Vec<&Ring> = self.claimers.iter().filter_map(Claimer::ring).collect();
        let shares = |one: &&Ring| rings.iter().all(|other| one.shares_a_segment_with(other));
        rings.iter().all(shares)
    }

    /// The number of open claimers that use an ordinary insert.
    fn firsts(&self) -> usize {
        let is_first = |claimer: &&Claimer| claimer.is_first();
        self.claimers.iter().filter(is_first).count()
    }

    fn duplicates_find_their_claim(&self) -> bool {
        self.claimers.iter().enumerate().all(|(n, claimer)| {
            let Claimer::Duplicate { slice, .. } = claimer else {
                return true;
            };
            let mut rows = self.rows.as_flattened().iter().flatten();
            let has_written = rows.any(|row| row.by == Some(n));
            let mut found = self.rows[*slice].iter().flatten();
            let is_found = found.any(|row| row.is_committed);
            is_found && !has_written
        })
    }
}

impl Model for Claims {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let state = |filtered| State {
            ring: Ring::NEW,
            rows: [[None; SEGMENTS]; SLICES],
            passed: None,
            filtered,
            filter: Filter::NONE,
            claimers: vec![Claimer::Idle; self.claimers],
            copier: if self.copies {
                Copier::Idle
            } else {
                Copier::Done
            },
            crashes: 0,
            is_doubled: false,
            is_forgotten_early: false,
            is_removed: false,
        };
        (0..SLICES).map(state).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (n, claimer) in state.claimers.iter().enumerate() {
            match claimer {
                Claimer::Idle => actions.push(Action::Enter(n)),
                Claimer::Entered(_) => actions.push(Action::Open(n)),
                Claimer::Open(open) if open.step == Step::Written => {
                    actions.extend([Action::Commit(n), Action::RollBack(n)]);
                }
                Claimer::Open(_) => actions.push(Action::Claim(n)),
                Claimer::Duplicate { .. } => actions.push(Action::RollBack(n)),
                Claimer::Ended => {}
            }
        }
        actions.extend([Action::Advance, Action::Rotate]);
        let filter = &state.filter;
        actions.push(match (filter.status, &filter.lockers) {
            (Status::Building, None) => Action::List,
            (Status::Building, Some(_)) if !filter.is_scanned => Action::Scan,
            (Status::Building, _) => Action::Complete,
            _ => Action::Prepare,
        });
        match state.copier {
            Copier::Done => {}
            _ => actions.push(Action::Copy),
        }
        if state.crashes < self.crashes {
            actions.push(Action::Crash);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let is_done = match action {
            Action::Enter(n) => claimer::enter(&mut state, n),
            Action::Open(n) => claimer::open(&mut state, n),
            Action::Claim(n) => claimer::step(self, &mut state, n),
            Action::Commit(n) => claimer::commit(&mut state, n),
            Action::RollBack(n) => claimer::roll_back(&mut state, n),
            Action::Advance => ring::advance(self, &mut state),
            Action::Rotate => ring::rotate(self, &mut state),
            Action::Prepare => filter::prepare(&mut state),
            Action::List => filter::list(self, &mut state),
            Action::Scan => filter::scan(&mut state),
            Action::Complete => filter::complete(&mut state),
            Action::Copy => filter::copy(self, &mut state),
            Action::Crash => crash(&mut state),
        };
        is_done.then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(CLAIMED_ONCE, |_, state: &State| !state.is_doubled),
            Property::always(ONE_SEGMENT, |_, state: &State| {
                state.claimers_share_segments()
            }),
            Property::always(ONE_FIRST, |_, state: &State| state.firsts() <= 1),
            Property::always(KEPT, |_, state: &State| !state.is_forgotten_early),
            Property::always(REMOVED, |_, state: &State| state.keeps_no_old_row()),
            Property::always(SAME_FACTS, |_, state: &State| {
                state.duplicates_find_their_claim()
            }),
            Property::sometimes("a claim is removed with its slice", |_, state: &State| {
                state.is_removed
            }),
            Property::sometimes(
                "a filter excludes the message of a claimer",
                |_, state: &State| state.has_excluded(),
            ),
            Property::sometimes("a filter has the message", |_, state: &State| {
                state.filter.has_message()
            }),
            Property::sometimes("a claimer uses an ordinary insert", |_, state: &State| {
                state.firsts() == 1
            }),
            Property::sometimes("a duplicate is found", |_, state: &State| {
                let is_duplicate = |claimer| matches!(claimer, &Claimer::Duplicate { .. });
                state.claimers.iter().any(is_duplicate)
            }),
        ]
    }
}

/// Executes actions from the initial state in which this slice has a filter. Returns the invariants
/// that the last state breaks, or `None` if an action is not possible.
pub fn replay(model: &Claims, filtered: usize, actions: &[Action]) -> Option<Vec<&'static str>> {
    let mut initial = model.init_states().into_iter();
    let mut state = initial.find(|state| state.filtered == filtered)?;
    for &action in actions {
        let mut possible = Vec::new();
        model.actions(&state, &mut possible);
        state = match possible.contains(&action) {
            true => model.next_state(&state, action)?,
            false => return None,
        };
    }
    let broken = |property: &Property<Claims>| {
        property.expectation == Expectation::Always && !(property.condition)(model, &state)
    };
    let broken = model.properties().into_iter().filter(broken);
    Some(broken.map(|property| property.name).collect())
}

/// The server loses its shared memory and every transaction that has not committed.
fn crash(state: &mut State) -> bool {
    state.crashes += 1;
    state.filter = Filter::NONE;
    for n in 0..state.claimers.len() {
        if !matches!(state.claimers[n], Claimer::Idle | Claimer::Ended) {
            claimer::roll_back(state, n);
        }
    }
    for row in state.rows.as_flattened_mut() {
        *row = row.filter(|row| row.is_committed);
    }
    state.copier = Copier::Done;
    true
}
