"""The sections: each module's ``run`` decides the claims of one section, or of several."""
