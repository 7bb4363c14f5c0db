//! Runs the filters: on the message before the handler, and on the effects after it.

use idem_client::Effect;

use super::settings::Settings;
use crate::{
    Handled, Message, Settlement,
    filter::{After, Before},
    panics::unwinding,
    telemetry,
};

/// Returns the message after the filters.
///
/// If a filter stopped the message, `Err` contains the settlement that the filter returned.
pub(super) async fn filter_message(
    settings: &Settings,
    message: &Message,
) -> Result<Message, Settlement> {
    let mut message = message.clone();
    for filter in &settings.filters {
        match filter.before_consuming(&message).await {
            Before::Continue => {}
            Before::Stop(settlement) => return Err(settlement),
            Before::Replace(other) => message = other.in_place_of(&message),
        }
    }
    Ok(message)
}

/// Returns the effects of a handler after the filters, with the trace context of the message. A
/// panic of a filter is an error of the handler, so that the lease of the attempt is ended.
pub(super) async fn filter_effects(
    settings: &Settings,
    message: &Message,
    mut effects: Vec<Effect>,
) -> Handled {
    for filter in settings.filters.iter().rev() {
        let consumed = async { filter.on_consumed(message, &effects).await };
        match unwinding(consumed).await? {
            After::Continue => {}
            After::Replace(others) => effects = others,
            After::Stop(error) => return Err(error),
        }
    }
    telemetry::pass_on(message, &mut effects);
    Ok(effects)
}
