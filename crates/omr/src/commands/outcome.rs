//! The exit code of a command that reclaims.

use omr_base::exit::Exit;
use omr_policy::End;
use omr_units::Amount;

/// Returns the exit code for the end of a run.
pub fn exit(end: End) -> Exit {
    match end {
        End::Complete => Exit::Done,
        End::Denied | End::Failed => Exit::Failed,
        End::Unsupported => Exit::Unsupported,
        End::Floor
        | End::Futile
        | End::Stopped
        | End::Timeout
        | End::SwapFloor
        | End::WriteBudget
        | End::NoMoreCold
        | End::NotAged
        | End::NotSeen
        | End::Gone => Exit::Partial,
    }
}

/// Returns the exit code for a requested amount: "max" asks for no more than reclaim can find.
pub fn exit_for(end: End, amount: Amount) -> Exit {
    match end {
        End::Futile | End::Floor | End::NoMoreCold if amount == Amount::Max => Exit::Done,
        end => exit(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_is_done_when_nothing_more_is_to_be_had() {
        for end in [End::Futile, End::Floor, End::NoMoreCold] {
            assert_eq!(exit_for(end, Amount::Max), Exit::Done, "{end:?}");
            assert_eq!(exit_for(end, Amount::Bytes(omr_units::Bytes(1))), Exit::Partial, "{end:?}");
        }
        for (end, expected) in [
            (End::Complete, Exit::Done),
            (End::Stopped, Exit::Partial),
            (End::SwapFloor, Exit::Partial),
            (End::Denied, Exit::Failed),
            (End::Failed, Exit::Failed),
            (End::Unsupported, Exit::Unsupported),
        ] {
            assert_eq!(exit_for(end, Amount::Max), expected, "{end:?}");
        }
    }
}
