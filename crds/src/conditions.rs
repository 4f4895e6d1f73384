//! Conditions of a MultiNetworkService: their types, their reasons, and how to set one.
//!
//! Every reason belongs to one type and stands for one status, so that a wrong combination cannot be
//! written down. Types and the reason that says "as it should be" are those of the Gateway API where it
//! has them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::schema::MESSAGE_LENGTH;

/// The type of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionType {
    /// Whether the object makes sense to the controller.
    Accepted,
    /// Whether all that the object refers to exists and can be used.
    ResolvedRefs,
    /// Whether the slices say what the object wants.
    Programmed,
    /// Whether there is at least one ready endpoint. It is not called Ready: tools that wait for that would take a service that is
    /// scaled to zero for broken.
    EndpointsReady,
    /// Whether pods of one network have the same address. True is bad.
    AddressConflict,
    /// Whether a limit leaves addresses out. True is bad; where nothing is left out, there is no such condition.
    Capped,
}

impl ConditionType {
    /// All of them. Conditions of other types are whoever's set them.
    pub const ALL: [Self; 6] = [
        Self::Accepted,
        Self::ResolvedRefs,
        Self::Programmed,
        Self::EndpointsReady,
        Self::AddressConflict,
        Self::Capped,
    ];

    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::ResolvedRefs => "ResolvedRefs",
            Self::Programmed => "Programmed",
            Self::EndpointsReady => "EndpointsReady",
            Self::AddressConflict => "AddressConflict",
            Self::Capped => "Capped",
        }
    }
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// `True`
    True,
    /// `False`
    False,
    /// `Unknown`: nobody has looked yet, or could.
    Unknown,
}

impl Status {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// A reason: the type of its condition and the status that it stands for follow from it.
pub trait Reason: Copy {
    /// The type of the condition that has this reason.
    const TYPE: ConditionType;

    /// As the API spells it: CamelCase.
    fn as_str(self) -> &'static str;

    /// The status of the condition that has this reason.
    fn status(self) -> Status;
}

/// Declares the reasons of one condition type.
macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident for $type:ident { $($(#[$reason_doc:meta])* $reason:ident => $status:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$reason_doc])* $reason,)*
        }

        impl Reason for $name {
            const TYPE: ConditionType = ConditionType::$type;

            fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => stringify!($reason),)*
                }
            }

            fn status(self) -> Status {
                match self {
                    $(Self::$reason => Status::$status,)*
                }
            }
        }
    };
}

reasons! {
    /// Reasons of [`ConditionType::Accepted`].
    AcceptedReason for Accepted {
        /// True: the object makes sense.
        Accepted => True,
        /// False: the object breaks a rule, for example one that is younger than the object.
        Invalid => False,
        /// Unknown: the controller has not looked at the object yet.
        Pending => Unknown,
    }
}

reasons! {
    /// Reasons of [`ConditionType::ResolvedRefs`].
    ResolvedRefsReason for ResolvedRefs {
        /// True: all that the object refers to exists.
        ResolvedRefs => True,
        /// False: a network's object does not exist.
        NetworkNotFound => False,
        /// False: a network can never be one of the object's pods: a ResourceClaimTemplate of another namespace.
        NetworkNotUsable => False,
        /// False: the API server does not serve the kind of a network: Multus or DRA is not installed.
        NetworkKindNotServed => False,
        /// False: the Service to mirror to does not exist.
        MirrorNotFound => False,
        /// False: the Service to mirror to has a selector or a cluster IP.
        MirrorNotUsable => False,
    }
}

reasons! {
    /// Reasons of [`ConditionType::Programmed`].
    ProgrammedReason for Programmed {
        /// True: the slices say what the object wants.
        Programmed => True,
        /// True: the object has no selector, so that its slices are somebody else's to write.
        NoSelector => True,
        /// Unknown: the slices are still being written.
        Pending => Unknown,
        /// False: the object is not accepted, so that no slices are written.
        Invalid => False,
        /// False: writing the slices failed, and is tried again.
        WriteFailed => False,
    }
}

reasons! {
    /// Reasons of [`ConditionType::EndpointsReady`].
    EndpointsReadyReason for EndpointsReady {
        /// True: at least one endpoint is ready.
        EndpointsReady => True,
        /// False: the selector matches no pod.
        NoPods => False,
        /// False: no selected pod has an address on the networks.
        NoAddresses => False,
        /// False: there are endpoints, and none is ready.
        NoneReady => False,
        /// False: the object has no selector, and there are no slices of it.
        NoSlices => False,
    }
}

reasons! {
    /// Reasons of [`ConditionType::AddressConflict`].
    AddressConflictReason for AddressConflict {
        /// True: pods of one network and namespace have the same address. One of them is published, the others are not.
        DuplicateAddress => True,
        /// True: a pod of another namespace reports an address that the object publishes. Nothing is withheld.
        OtherNamespace => True,
        /// False: every address is one pod's.
        NoConflict => False,
    }
}

reasons! {
    /// Reasons of [`ConditionType::Capped`].
    CappedReason for Capped {
        /// True: a pod has more addresses on a network than are published.
        AddressesPerPod => True,
        /// True: the object's pods have more addresses than are published of one object.
        AddressesPerService => True,
        /// True: the objects of the namespace have more addresses than are published of one namespace.
        AddressesPerNamespace => True,
    }
}

/// Sets the condition of the reason's type, and says whether that changed anything but the time.
///
/// `lastTransitionTime` becomes `now` if the status is another than before, and stays otherwise. Longer
/// messages than the API allows (32768 characters) are cut. Conditions of other types, and of types that
/// multinet does not know, stay as they are.
pub fn upsert<R: Reason>(
    conditions: &mut Vec<Condition>,
    reason: R,
    message: &str,
    generation: Option<i64>,
    now: &Time,
) -> bool {
    let mut new = Condition {
        type_: R::TYPE.as_str().to_owned(),
        status: reason.status().as_str().to_owned(),
        reason: reason.as_str().to_owned(),
        message: message.chars().take(MESSAGE_LENGTH).collect(),
        observed_generation: generation,
        last_transition_time: now.clone(),
    };
    let Some(old) = conditions.iter_mut().find(|condition| condition.type_ == new.type_) else {
        conditions.push(new);
        return true;
    };
    if old.status == new.status {
        new.last_transition_time = old.last_transition_time.clone();
    }
    let changed = *old != new;
    *old = new;
    changed
}

/// Removes the condition of a type.
pub fn remove(conditions: &mut Vec<Condition>, kind: ConditionType) {
    conditions.retain(|condition| condition.type_ != kind.as_str());
}

/// The condition of a type.
pub fn find(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == kind.as_str())
}

/// Whether there is a condition of this type with this status.
pub fn has_status(conditions: &[Condition], kind: ConditionType, status: Status) -> bool {
    find(conditions, kind).is_some_and(|condition| condition.status == status.as_str())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn the_time_of_transition_is_that_of_the_status() {
        let mut conditions = Vec::new();
        assert!(upsert(&mut conditions, ProgrammedReason::Pending, "writing", Some(1), &at(10)));
        assert_eq!(conditions[0].last_transition_time, at(10));

        assert!(upsert(&mut conditions, ProgrammedReason::Programmed, "", Some(1), &at(20)));
        assert_eq!(conditions[0].last_transition_time, at(20));

        assert!(upsert(&mut conditions, ProgrammedReason::NoSelector, "", Some(2), &at(30)));
        assert_eq!(
            (conditions[0].reason.as_str(), conditions[0].observed_generation),
            ("NoSelector", Some(2))
        );
        assert_eq!(conditions[0].last_transition_time, at(20), "True before and after");
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn what_is_already_so_is_no_change() {
        let mut conditions = Vec::new();
        upsert(&mut conditions, AcceptedReason::Accepted, "fine", Some(1), &at(10));
        assert!(!upsert(&mut conditions, AcceptedReason::Accepted, "fine", Some(1), &at(20)));
        assert!(upsert(&mut conditions, AcceptedReason::Accepted, "fine", Some(2), &at(20)));
        assert!(upsert(&mut conditions, AcceptedReason::Accepted, "very fine", Some(2), &at(20)));
    }

    #[test]
    fn other_types_are_left_alone() {
        let mut conditions = Vec::new();
        upsert(&mut conditions, AcceptedReason::Accepted, "", None, &at(10));
        let before = conditions.clone();
        upsert(&mut conditions, AddressConflictReason::DuplicateAddress, "10.0.0.1", None, &at(20));
        assert_eq!(conditions[..1], before);
        assert!(has_status(&conditions, ConditionType::AddressConflict, Status::True));
        assert!(!has_status(&conditions, ConditionType::Programmed, Status::Unknown), "absent");
        assert_eq!(find(&conditions, ConditionType::Accepted).unwrap().reason, "Accepted");
    }

    #[test]
    fn a_message_fits_its_field() {
        let mut conditions = Vec::new();
        upsert(&mut conditions, AcceptedReason::Invalid, &"é".repeat(40_000), None, &at(10));
        assert_eq!(conditions[0].message.chars().count(), MESSAGE_LENGTH);
    }
}
