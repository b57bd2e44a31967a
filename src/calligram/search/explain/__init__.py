"""Why a result was found: word importance, attention, phrase localization."""
