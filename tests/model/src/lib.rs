//! A model of the claims of one message, the segments and the rotations of its ring, the filters of
//! the slices, and rows that another command inserts. A model checker explores every order of the
//! steps.
//!
//! Each action names the function that it models. A [`Rule`] that is left out must give a
//! counterexample: see `tests/`.

mod claim;
mod claimer;
mod copier;
mod fence;
mod filter;
mod lockers;
mod place;
pub mod properties;
mod ring;
mod rules;

pub use claim::Step;
pub use claimer::Claimer;
pub use copier::Copier;
pub use fence::Fence;
pub use filter::{Filter, Status};
pub use lockers::{COPIER, Lockers, Transaction};
pub use place::{Place, Row, Rows, SEGMENTS, SLICES};
pub use ring::{Phase, Ring};
pub use rules::Rule;

use stateright::{Expectation, Model, Property};

const MOST_CLAIMERS: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub ring: Ring,
    pub fence: Fence,
    pub rows: Rows,
    /// The slice with a filter, into which rows are copied. Filters of different slices do not
    /// depend on each other, so the model has one at a time.
    pub filtered: u8,
    pub filter: Filter,
    /// Those that the model does not have are `Ended`.
    pub claimers: [Claimer; MOST_CLAIMERS],
    pub copier: Copier,
    /// How often the ring has advanced within a slice.
    pub advances: u8,
    /// The periods that have passed at the last rotation.
    pub periods: u8,
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
    Enter(Transaction),
    /// `Slices::open`: locks the slices to which the claim is written.
    Open(Transaction),
    /// One step of `ClaimWriter::decide`.
    Claim(Transaction),
    Commit(Transaction),
    RollBack(Transaction),
    /// `idem.rotate`: advancing.
    Advance,
    /// `idem.rotate`: opened, or the step that follows the published one (advanced, rotated,
    /// emptied).
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
    pub claimers: Transaction,
    pub rotations: u8,
    pub advances: u8,
    pub copies: bool,
    pub crashes: u8,
    pub without: Option<Rule>,
}

impl Claims {
    /// Two claimers, and all rules. Claims are removed from the third rotation on.
    pub const WHOLE: Claims = Claims {
        claimers: 2,
        rotations: 3,
        advances: 0,
        copies: true,
        crashes: 0,
        without: None,
    };

    /// The smallest model in which leaving this rule out breaks an invariant.
    pub fn without(rule: Rule) -> Claims {
        let (rotations, advances) = match rule {
            Rule::Advancing | Rule::WholeSlice | Rule::Conflict => (0, 1),
            Rule::FenceName => (0, 2),
            Rule::Period => (3, 1),
            // A slice with an old filter is sealed again after more rotations.
            Rule::Tag => (5, 0),
            _ => (3, 0),
        };
        Claims {
            rotations,
            advances,
            copies: matches!(
                rule,
                Rule::WholeSlice | Rule::Invalidation | Rule::Lockers | Rule::First
            ),
            without: Some(rule),
            ..Claims::WHOLE
        }
    }

    pub fn keeps(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }
}

impl Model for Claims {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut claimers = [Claimer::Ended; MOST_CLAIMERS];
        claimers[..usize::from(self.claimers)].fill(Claimer::Idle);
        let state = |filtered| State {
            ring: Ring::NEW,
            fence: Fence::NONE,
            rows: Rows::NONE,
            filtered,
            filter: Filter::NONE,
            claimers,
            copier: match self.copies {
                true => Copier::Idle,
                false => Copier::Done,
            },
            advances: 0,
            periods: 0,
            crashes: 0,
            is_doubled: false,
            is_forgotten_early: false,
            is_removed: false,
        };
        (0..SLICES).map(state).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // The claimers do not differ, so they enter in their order.
        let mut is_next = true;
        for (n, claimer) in (0..).zip(&state.claimers) {
            match claimer {
                Claimer::Idle if std::mem::take(&mut is_next) => actions.push(Action::Enter(n)),
                Claimer::Entered(_) => actions.push(Action::Open(n)),
                Claimer::Open(open) if open.step == Step::Written => {
                    actions.extend([Action::Commit(n), Action::RollBack(n)]);
                }
                Claimer::Open(_) => actions.push(Action::Claim(n)),
                Claimer::Duplicate { .. } => actions.push(Action::RollBack(n)),
                Claimer::Idle | Claimer::Ended => {}
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
            Action::Claim(n) => claim::step(self, &mut state, n),
            Action::Commit(n) => claimer::commit(&mut state, n),
            Action::RollBack(n) => claimer::roll_back(&mut state, n),
            Action::Advance => ring::advance(self, &mut state),
            Action::Rotate => ring::rotate(self, &mut state),
            Action::Prepare => filter::prepare(&mut state),
            Action::List => filter::list(self, &mut state),
            Action::Scan => filter::scan(&mut state),
            Action::Complete => filter::complete(&mut state),
            Action::Copy => copier::copy(self, &mut state),
            Action::Crash => crash(&mut state),
        };
        is_done.then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
    }
}

/// Executes actions from the initial state in which this slice has a filter. Returns the invariants
/// that the last state breaks, or `None` if an action is not possible.
pub fn replay(model: &Claims, filtered: u8, actions: &[Action]) -> Option<Vec<&'static str>> {
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

/// The server loses its shared memory and every transaction that has not committed. The list of a
/// fence belongs to one run of the server.
fn crash(state: &mut State) -> bool {
    state.crashes += 1;
    state.filter = Filter::NONE;
    state.fence = Fence::NONE;
    state.rows.roll_back(|_| true);
    for claimer in &mut state.claimers {
        if claimer.ring().is_some() {
            *claimer = Claimer::Ended;
        }
    }
    state.copier = Copier::Done;
    true
}
