//! Whether the machine hibernates by itself: by logind's actions for its lid and for an idle
//! machine, and by UPower's action for a critical battery. What is not known does not count.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use omr_policy::need::HibernatesBy;

use super::session::Properties;
use crate::bus::{Connection, Target, UPOWER, flag, text};

/// UPower is asked again after this time. It sends no signal when its action changes.
const AGAIN: Duration = Duration::from_secs(600);

/// logind's actions, which it reads from its configuration when it starts or is reloaded.
const ACTIONS: [(&str, HibernatesBy); 4] = [
    ("HandleLidSwitch", HibernatesBy::Lid),
    ("HandleLidSwitchExternalPower", HibernatesBy::Lid),
    ("HandleLidSwitchDocked", HibernatesBy::Lid),
    ("IdleAction", HibernatesBy::Idle),
];

/// The setting of logind by which the machine hibernates.
pub fn by_logind(manager: &Properties) -> Option<HibernatesBy> {
    let hibernates = |name: &str| {
        let action = manager.get(name).and_then(|value| text(value));
        matches!(action, Some("hibernate" | "hybrid-sleep" | "suspend-then-hibernate"))
    };
    ACTIONS.iter().find(|(name, _)| hibernates(name)).map(|(_, by)| *by)
}

/// What UPower does with a critical battery, as of the last answer.
#[derive(Debug, Default)]
pub struct CriticalBattery {
    asked: Option<Instant>,
    hibernates: bool,
}

impl CriticalBattery {
    /// Returns true if the machine has a battery and hibernates when that is critical.
    pub fn hibernates(&mut self, bus: &Connection) -> bool {
        if self.asked.is_none_or(|asked| asked.elapsed() >= AGAIN) {
            self.hibernates = ask(bus).inspect_err(|err| log::debug!("{err:#}")).unwrap_or(false);
            self.asked = Some(Instant::now());
        }
        self.hibernates
    }
}

/// Asks UPower, which is not started for this.
fn ask(bus: &Connection) -> Result<bool> {
    let Some(answer) = bus.ask(&UPOWER, "GetCriticalAction", &())? else { return Ok(false) };
    let action: String = answer.body().deserialize().context("UPower answers with something else than an action")?;
    // All batteries of the machine together.
    let battery = Target {
        path: "/org/freedesktop/UPower/devices/DisplayDevice",
        interface: "org.freedesktop.UPower.Device",
        ..UPOWER
    };
    let hibernates = matches!(action.as_str(), "Hibernate" | "HybridSleep");
    Ok(hibernates && bus.property(&battery, "IsPresent")?.is_some_and(|value| flag(&value) == Some(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(values: &[(&str, &str)]) -> Properties {
        let owned = |value: &str| zbus::Variant::from(value).try_into().expect("owned");
        values.iter().map(|(name, value)| ((*name).to_owned(), owned(value))).collect()
    }

    #[test]
    fn the_actions_of_the_lid_and_of_idleness_count() {
        for (name, by) in ACTIONS {
            for action in ["hibernate", "hybrid-sleep", "suspend-then-hibernate"] {
                assert_eq!(by_logind(&manager(&[(name, action), ("HandlePowerKey", "poweroff")])), Some(by));
            }
            for action in ["suspend", "ignore", "poweroff", "lock", "sleep", "", "Hibernate"] {
                assert_eq!(by_logind(&manager(&[(name, action)])), None, "{name} {action}");
            }
        }
        for key in ["HandleHibernateKey", "HandlePowerKey", "HandleSuspendKey"] {
            assert_eq!(by_logind(&manager(&[(key, "hibernate")])), None, "a person presses it");
        }
        assert_eq!(by_logind(&Properties::new()), None);
        let number =
            Properties::from([("HandleLidSwitch".to_owned(), zbus::Variant::from(1u32).try_into().expect("owned"))]);
        assert_eq!(by_logind(&number), None);
    }
}
