//! The tests that run in a few minutes: the unit tests, the isolation tests, and one test for each
//! invariant.

/// One test for each invariant of ARCHITECTURE.md, from I1 to I12. The isolation tests also test I1
/// and I3.
pub const INVARIANTS: [&str; 13] = [
    "i1_try_claim_returns_true_once",
    "i1_i3_specs_pass_at_every_isolation_level",
    "i2_claim_business_and_effects_commit_together",
    "i3_every_member_is_returned_unchanged",
    "i4_relay_that_dies_before_ack_publishes_same_ids_again",
    "i5_relays_read_committed_effects_once_in_key_order",
    "i6_claim_made_during_a_fence_is_kept_for_its_retention",
    "i7_progress_is_bounded_and_rotation_keeps_cursor_and_lease",
    "i8_duplicate_assigns_no_xid_and_writes_no_wal",
    "i9_public_has_no_privilege",
    "i10_cases_pass_with_literals",
    "i11_relay_never_waits_for_progress_rotation",
    "i12_trigger_of_others_fails_and_is_named",
];

/// The test binaries that contain [`INVARIANTS`].
pub const BINARIES: [&str; 3] = ["isolation", "spec", "server"];
