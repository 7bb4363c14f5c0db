//! The rules of the protocol.

/// A rule that a broken variant leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// While the ring opens, claims are written to current and to next (`idem.rotate`: opening).
    Opening,
    /// While the ring advances, claims are written to the present and to the next segment
    /// (`idem.rotate`: advancing).
    Advancing,
    /// The next place becomes the present one only when no transaction writes to the present one
    /// only (`idem.fence`).
    FirstFence,
    /// A slice is emptied only when no transaction reads it (`idem.fence`).
    SecondFence,
    /// Each step that is published has a fence of its own: the name of the fence contains the
    /// segment and the time (`idem.published_step`).
    FenceName,
    /// A ring rotates when its period has passed, however many segments it has used
    /// (`idem.is_due`).
    Period,
    /// A look-up reads every segment of the slice. The state of the ring does not limit it
    /// (`Lookup::in_segments`).
    WholeSlice,
    /// After a conflict, only its segment is looked up: another one can have the claimer's own row
    /// (`Lookup::in_segment`).
    Conflict,
    /// A row that another command inserts invalidates the filter (`idem.invalidate_filter`).
    Invalidation,
    /// A filter is completed when the transactions have ended that were writing to its slice
    /// (`Lockers::have_ended`).
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

impl Rule {
    pub const ALL: [Rule; 14] = [
        Rule::Opening,
        Rule::Advancing,
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
