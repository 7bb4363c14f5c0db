//! Effects: the outgoing messages that a consumer sends while it processes a message. They are
//! recorded with the claim of that message and returned to every duplicate of it.

mod read;
mod record;

pub use read::recorded;
pub use record::{record, record_each, replay, send};

use crate::errors::Result;
use crate::settings::check_payload;
use crate::sql_types::JsonText;
use idem_core::{EffectSpec, parse_effects, parse_effects_of_each};

/// Parses the effects argument of a function.
pub fn parse(effects: &JsonText) -> Result<Vec<EffectSpec<'_>>> {
    let effects = parse_effects(effects.as_str(), tick)?;
    effects.iter().try_for_each(check)?;
    Ok(effects)
}

/// Parses the effects of this number of messages.
pub fn parse_each(effects: &JsonText, messages: usize) -> Result<Vec<Vec<EffectSpec<'_>>>> {
    let effects = parse_effects_of_each(effects.as_str(), messages, tick)?;
    effects.iter().flatten().try_for_each(check)?;
    Ok(effects)
}

fn tick() {
    pgrx::check_for_interrupts!();
}

fn check(effect: &EffectSpec) -> Result<()> {
    check_payload(effect.payload.bytes().len())
}
