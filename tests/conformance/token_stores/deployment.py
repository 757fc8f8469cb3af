"""The part of the contract of a token store that depends on how the store reaches its server.

Another version of the server, a pooler, Sentinels or a cluster changes connections, transactions, the notification of
revocations and where a script finds its keys. It does not change what a statement means, so names, times and limits
are tested in one deployment of each kind of store, and every statement or script is executed here at least once.
"""

from __future__ import annotations

from ostiary_gateway.testing.token_store import (
    ObjectStoreContract,
    OriginStoreContract,
    PortableStoreContract,
    RecordStoreContract,
    ReplicaStoreContract,
    SessionPagesContract,
    SharedObjectStoreContract,
    SharedRecordStoreContract,
)
from ostiary_gateway.testing.token_store.items import SharingContract
from ostiary_gateway.testing.token_store.programs import ProgramsContract
from ostiary_gateway.testing.token_store.revoking import RevokingContract
from ostiary_gateway.testing.token_store.sessions import RenewingContract, StoringContract


class DeploymentContract(SharingContract, RevokingContract, RenewingContract):
    """Inherit from it, and give the fixtures `store`, `other`, `empty` and `clock`."""

    # --- all of a change or nothing, and once ---

    test_session_and_tokens_are_stored_both_or_neither = (
        StoringContract.test_session_and_tokens_are_stored_both_or_neither
    )
    test_many_at_once_are_all_stored = StoringContract.test_many_at_once_are_all_stored
    test_a_token_of_another_session_is_not_taken_over = (
        ProgramsContract.test_a_token_of_another_session_is_not_taken_over
    )
    test_a_revocation_and_tokens_that_come_at_once_leave_nothing = (
        ProgramsContract.test_a_revocation_and_tokens_that_come_at_once_leave_nothing
    )
    test_what_one_puts_the_other_takes_and_only_one_of_them = (
        SharedRecordStoreContract.test_what_one_puts_the_other_takes_and_only_one_of_them
    )
    test_of_many_that_create_or_change_at_once_one_does = (
        ObjectStoreContract.test_of_many_that_create_or_change_at_once_one_does
    )
    test_of_both_that_change_at_once_one_does = SharedObjectStoreContract.test_of_both_that_change_at_once_one_does
    test_the_first_owner_stays = ReplicaStoreContract.test_the_first_owner_stays
    test_another_owner_can_take_over_on_purpose = ReplicaStoreContract.test_another_owner_can_take_over_on_purpose

    # --- every statement and script ---

    test_everything_is_moved_in_pages_of_any_size = PortableStoreContract.test_everything_is_moved_in_pages_of_any_size
    test_many_are_moved_at_once = PortableStoreContract.test_many_are_moved_at_once
    test_a_sweep_of_many_leaves_none = StoringContract.test_a_sweep_of_many_leaves_none
    test_closing_twice_is_harmless_and_nothing_is_answered_afterwards = (
        StoringContract.test_closing_twice_is_harmless_and_nothing_is_answered_afterwards
    )
    test_sessions_are_counted_and_listed_by_kind = ProgramsContract.test_sessions_are_counted_and_listed_by_kind
    test_the_last_use_is_written_down = ProgramsContract.test_the_last_use_is_written_down
    test_pages_of_one_user_a_group_or_a_kind = SessionPagesContract.test_pages_of_one_user_a_group_or_a_kind
    test_sessions_are_found_by_their_origin = OriginStoreContract.test_sessions_are_found_by_their_origin
    test_an_origin_ends_all_sessions_that_came_from_it_and_no_others = (
        OriginStoreContract.test_an_origin_ends_all_sessions_that_came_from_it_and_no_others
    )
    test_a_record_is_found_until_it_is_taken_and_then_by_nobody = (
        RecordStoreContract.test_a_record_is_found_until_it_is_taken_and_then_by_nobody
    )
    test_objects_are_listed_by_name_in_pages = ObjectStoreContract.test_objects_are_listed_by_name_in_pages
    test_what_was_deleted_is_gone = ObjectStoreContract.test_what_was_deleted_is_gone
    test_a_note_takes_the_place_of_an_older_one = ReplicaStoreContract.test_a_note_takes_the_place_of_an_older_one
    test_a_removed_note_is_gone = ReplicaStoreContract.test_a_removed_note_is_gone
